"""Publishes the relay in both clusters: EndpointSlices that direct clients to it, and agent Pods.

`forward` (with `headless`) publishes pods of the remote in home's Services, `reverse` publishes
pods of home in the remote's Services. `bridge.relay` forwards the connections.
"""
