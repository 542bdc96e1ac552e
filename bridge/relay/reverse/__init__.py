"""Connections from pods in the remote to home, through the relay agent."""
