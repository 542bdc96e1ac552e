"""Runs joins: wires the parts of one virtual node and supervises several in one process.

`join_lifecycle` is the entry point; `replica_lifecycle` orders standing by, serving and handover;
`kubelet_api` wires the kubelet API; `probe_server` and `readiness` answer health checks;
`supervisor` is `bridge run`.
"""
