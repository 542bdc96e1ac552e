"""Connections from home to pods in the remote.

`service_listeners` listens for Services, `headless_service_listeners` on the pod addresses of
headless Services; `remote_pod_connections` forwards what they accept, through a port-forward to a
pod that `balancer` picks. `relay_cidr_route` makes the pod addresses local, by `rtnetlink`.
"""
