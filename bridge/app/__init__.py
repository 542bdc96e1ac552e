"""Runs joins: assembles the parts of one virtual node, and the joins of one process.

`join_lifecycle` is the entry point; `term_factory` creates the parts of a term, `replica_handover`
orders standby, serving and handover; `kubelet_api_setup` assembles the kubelet API; `probe_server`
and `readiness` answer health checks; `run_several_joins` runs the joins of `bridge run`, which
`bridge.fleet` supervises.
"""
