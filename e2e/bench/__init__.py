"""Benchmarks on two real clusters: `python -m e2e.bench`.

`pods` measures the life of pods, the modules here streams, the relay and memory, and the output of
reports. docs/development/benchmarks.md has the figures.
"""
