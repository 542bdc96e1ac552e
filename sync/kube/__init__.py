"""The client of one Kubernetes API server: plain dicts over aiohttp.

Here belong credentials (`access`, and `reader`, `plugins`, `oidc` and `trust` below it), requests
(`client`), their errors, and the names of the kinds that the bridge uses (`resources`).
Nothing here knows that there are two clusters, beyond the word that an error names one by.
"""
