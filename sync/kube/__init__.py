"""The client of one Kubernetes API server: plain dicts over aiohttp.

Here belong endpoints and credentials (`endpoint`, `credentials`, `kubeconfig`, `kubeconfig_loader`,
`credential_plugins`, `oidc`, `in_cluster`), connections (`raw_connection`, `tls_over_transport`),
requests and streams (`client`, `transport`, `response_streams`), streams that share HTTP/2
connections (`http2`), upgrades (`http_upgrade`), errors, and the resources that the bridge uses.
Nothing here knows that there are two clusters, except that errors name their side, and that objects
of the remote are checked.
"""
