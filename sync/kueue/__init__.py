"""Kueue's admission check `cluster-bridge.io/fits`, from home alone: no remote is contacted.

`home_view` has the caches and what they say about each remote; `fits_controller` decides Workloads
and writes their status. `translators.kueue` has the rules.
"""
