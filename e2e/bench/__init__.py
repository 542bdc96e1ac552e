"""Benchmarks on two real clusters: `python -m e2e.bench`.

The figures are in docs/development/benchmarks.md.
"""
