"""Resource usage of the virtual node's pods, served as a kubelet serves it.

The bridge queries the remote only when a client queries the virtual node. Responses cover only the
pods of this node, under their names at home.
"""
