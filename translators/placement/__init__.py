"""Placement by policy, without I/O: PlacementPolicies (`placement_policy`), the decision with a
verdict for each remote (`decision`), and what is written to the pod (`placed_pod`).
"""
