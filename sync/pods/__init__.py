"""The lifecycle of the pods on the virtual node."""
