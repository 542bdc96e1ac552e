"""Deletion of remote objects that are no longer needed: empty namespaces while the bridge runs
(`empty_namespaces`), and all of its objects when the virtual node leaves (`remote_inventory`).
"""
