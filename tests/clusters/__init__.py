"""The reads of `e2e.clusters` that need neither root nor a cluster."""
