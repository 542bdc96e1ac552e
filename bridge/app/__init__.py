"""Runs joins: wires the parts of one virtual node and supervises several in one process.

`join` is the entry point; `replica` orders standing by, serving and handover; `node_kubelet` wires
the kubelet API; `probe_server` and `readiness` answer health checks; `supervisor` is `bridge run`.
"""
