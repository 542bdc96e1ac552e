"""The parts of `e2e.faults` that need no cluster."""
