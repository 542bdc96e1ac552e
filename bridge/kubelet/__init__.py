"""The kubelet HTTP API of the virtual node, which home's API server calls on port 10250.

`server` accepts requests; `authn` and `authz` decide who may call what; `routing` and
`query_options` parse paths and queries; `logs`, `exec_attach_portforward`, `run_in_container`,
`node_endpoints` and `healthz` answer; `active_streams` counts and limits streams. The caller
supplies the pods (`pod_lookup`): nothing here translates pods or decides about objects.
"""
