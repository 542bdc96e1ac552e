"""Connections from home to pods in the remote.

`service_listeners` listens for Services, `pod_listeners` on pod addresses of headless Services;
`connections` forwards what they accept, through a port-forward to a pod that `balancer` picks.
"""
