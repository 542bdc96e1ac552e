"""What pods cost behind the bridge: many at once, one at a time, at rest, after a restart.

The remote's nodes are simulated, so that API servers and the bridge are all that is measured; each
baseline is taken in the same run and alone, since a bridge that runs watches it too.
"""
