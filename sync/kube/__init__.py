"""The client of one Kubernetes API server: plain dicts over aiohttp.

Here belong credentials (`access`, the one importer of the `kubernetes` package), requests
(`client`), their errors, and the names of the kinds that the bridge uses (`resources`).
Nothing here knows that there are two clusters, beyond the word that an error names one by.
"""
