"""TCP connections of the kubelet API and the relay: sockets, limits, tunnels and port-forwards.

What only one of the two needs is in `bridge.kubelet` or `bridge.relay`.
"""
