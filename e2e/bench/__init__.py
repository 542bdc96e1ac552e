"""Benchmarks on two real clusters: `python -m e2e.bench`. Figures: docs/benchmarks.md."""
