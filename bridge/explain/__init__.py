"""`bridge explain`: why a pod is, or would be, where it is."""
