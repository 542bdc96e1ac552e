"""What the real node passes, the virtual node passes: the upstream tests, run on both.

`python -m e2e.conformance run` runs one selection of Kubernetes' own end-to-end tests
(`selection.py`) twice on home: on its real node, and on the virtual node alone. What differs is in
the report (`report.py`), and is an error unless `exceptions.yaml` gives the reason for it;
docs/development/conformance.md is made from that file and the selection (`document.py`).
"""
