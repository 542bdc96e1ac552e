"""Connections, tunnels and their limits, for the kubelet API and the relay alike."""
