"""Conformance: the virtual node must pass every upstream test that the real node passes.

`python -m e2e.conformance run` runs one selection of Kubernetes' own end-to-end tests
(`selection.py`) twice on home: on its real node, and on the virtual node alone. The report
(`report.py`) has the differences, which are errors unless `exceptions.yaml` has a reason;
docs/development/conformance.md is generated from that file and the selection
(`conformance_page.py`).
"""
