"""Fault injection: faults on two real clusters under a random load, each followed by an audit.

    make faults                                  runs for 30 minutes
    python -m e2e.faults run --only NAME         runs some faults
    python -m e2e.faults list                    lists all faults

A `fault_model.Fault` describes what it does and how it heals; `fault_list` has all of them.
`runner` runs trials on an `environment.Stage`: the clusters, the bridge, and the tools of faults,
which are a network namespace (`bridge_network_namespace`), proxies (`faulty_proxy`) and a clock
(`clock`). An audit (`e2e.audit`) must find nothing.
"""
