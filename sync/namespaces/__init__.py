"""The namespaces of both clusters: the mapping from home to the remote, the record of the remote
namespaces that this home created, and the watches of home namespaces.
"""
