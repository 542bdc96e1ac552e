"""The costs of pods behind the bridge: many at once, one at a time, idle, and after a restart.

The remote's nodes are simulated, so that only API servers and the bridge are measured. Each
baseline is measured in the same run but alone, since a running bridge would watch it, too.
"""
