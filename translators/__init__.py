"""Pure translation of API objects between the home and the remote cluster.

Functions here take and return plain dicts: the remote object for a home object, the home status for
a remote status, the references of a pod, names and ownership labels, and patches. A function does
not modify its arguments, block, read the clock, draw random numbers, log, or import third-party
packages. A result may share parts with its input: copy it before you modify it.
"""
