"""The parts of `e2e.clusters` that need neither root nor a cluster."""
