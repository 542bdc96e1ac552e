"""The kubelet HTTP API of the virtual node, which home's API server calls on port 10250.

`server` accepts requests; `authn` and `authz` decide who may call what; `routing` and
`query_options` parse paths and queries; `logs`, `exec_attach_portforward`, `run`, `node_endpoints`
and `healthz` answer. The caller supplies the pods (`pod_directory`): nothing here knows how pods
are translated or decides about objects.
"""
