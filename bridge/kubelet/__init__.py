"""The kubelet HTTP API of the virtual node, which home's API server calls on port 10250.

`server` accepts requests; `authn` and `authz` decide who may call what; `routing` and
`query_options` parse paths and queries; `logs`, `exec_attach_portforward` and `healthz` answer;
`stream_limits` counts and limits streams. `pod_lookup` supplies the pods: nothing here translates
pods or decides about objects.
"""
