"""The client of one Kubernetes API server: plain dicts over aiohttp.

Here belong credentials (`credentials`, `kubeconfig`, `credential_plugins`, `oidc`), requests and
streams (`client`, `transport`, `streams`, `retry`), upgraded connections (`http_upgrade`), errors,
and the resources that the bridge uses. Nothing here knows that there are two clusters, except that
errors name their side.
"""
