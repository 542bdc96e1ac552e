"""The client of one Kubernetes API server: plain dicts over aiohttp.

Here belong endpoints and credentials (`endpoint`, `credentials`, `kubeconfig`, `kubeconfig_loader`,
`credential_plugins`, `oidc`, `bearer_token`, `in_cluster`), connections (`connections`,
`layered_transport`, `sockets`), requests and streams (`client`, `transport`, `response_streams`),
streams that share HTTP/2 connections (`http2`), upgrades (`http_upgrade`, `http1`), errors, and the
resources that the bridge uses. Nothing here knows that there are two clusters, except that errors
name their side, and that objects of the remote are checked.
"""
