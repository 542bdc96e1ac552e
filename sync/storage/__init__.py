"""Provisions home's PersistentVolumeClaims in the remote, and follows them to their deletion."""
