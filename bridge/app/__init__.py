"""Runs the join: assembles the parts of the virtual node.

`join_lifecycle` is the entry point; `term_factory` creates the parts of a term, `replica_handover`
orders standby, serving and handover; `kubelet_api_setup` assembles the kubelet API; `probe_server`
and `readiness` answer health checks.
"""
