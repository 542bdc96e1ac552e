"""Placement by policy: the process of the placer (`process`), its installation (`manifests`, with
the `admission_policy` that holds new pods for it), and the answers for people (`simulation`,
`cluster_snapshot`).
"""
