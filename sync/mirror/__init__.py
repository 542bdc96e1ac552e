"""Copies in both directions: home's ConfigMaps, Secrets, Services and EndpointSlices to the remote,
and the Events of remote pods to home. `copy_rules` declares what is copied and how.
"""
