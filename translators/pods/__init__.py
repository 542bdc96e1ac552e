"""Translates pods: the spec, updates and references to the remote, and the status back to home.

`remote_pod` builds a new remote pod, `field_rules` decides every field of it, `update` derives
patches for a running one, `pod_status` translates the remote pod's status, and `synthetic_status`
computes the statuses without a remote pod.
"""
