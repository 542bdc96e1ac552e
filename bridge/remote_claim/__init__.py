"""The claim Lease in the remote: at most one home works there for a virtual node."""
