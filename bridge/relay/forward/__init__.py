"""Connections from home to pods in the remote."""
