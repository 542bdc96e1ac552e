"""Translates pods: the spec, updates and references to the remote, and the status back to home.

`remote_pod` builds a new remote pod, `field_rules` decides every field of it, `update` derives
patches for a running one, and `status` and `synthetic_status` compute the home pod's status.
"""
