"""Deletion of remote objects that are no longer needed: empty namespaces while the bridge runs
(`empty_namespaces`), and everything when the virtual node leaves (`inventory`).
"""
