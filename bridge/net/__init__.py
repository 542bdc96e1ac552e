"""TCP connections of the kubelet API and the relay: sockets, limits, splicing and port-forwards.

Parts that only one of the two needs are in `bridge.kubelet` or `bridge.relay`.
"""
