"""Forwards TCP connections between the clusters if no pod network connects them.

`forward` is the direction from home to pods in the remote, `reverse` the direction from the remote
to pods at home (as in ``ssh -R``), through a relay agent in the remote. `sync.relay` publishes the
EndpointSlices that direct clients here. Byte transport is `bridge.net.splice`.
"""
