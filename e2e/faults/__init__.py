"""What may break, broken: under a steady mix of work, one fault after the other on two real
clusters, and after each an audit that must count nothing.

    make faults                                  30 minutes of it
    python -m e2e.faults run --only NAME         some of it
    python -m e2e.faults list                    what there is

A fault (`model.Fault`) says what it does and how it heals; `registry` has all of them. `conduct`
makes trials of them on a `stage.Stage`, which has the clusters, the bridge, and what faults are
made with: a network namespace (`network`), proxies (`proxy`), another clock (`clock`).
"""
