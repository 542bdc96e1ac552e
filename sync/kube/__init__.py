"""The client of one Kubernetes API server: plain dicts over aiohttp.

Here belong credentials (`credentials`, `kubeconfig`, `credential_plugins`, `oidc`, `in_cluster`),
requests and streams (`client`, `transport`, `response_streams`, `throttle_retry`), streams that
share HTTP/2 connections (`shared_connections`), upgraded connections (`http_upgrade`,
`tls_over_transport`), errors, and the resources that the bridge uses.
Nothing here knows that there are two clusters, except that errors name their side.
"""
