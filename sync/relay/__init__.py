"""Publishes the relay in both clusters: EndpointSlices that direct clients to it, and agent Pods.

`forward_controller` (with `headless_forward`) publishes pods of the remote in home's Services,
`reverse_controller` pods of home in the remote's Services. `bridge.relay` forwards the connections.
"""
