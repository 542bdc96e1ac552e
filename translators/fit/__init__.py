"""Whether pods fit single nodes, not only their sum: groups of equal nodes (`node_groups`), their
exchange as JSON, and the answer for one pod or for several together (`fit`).
"""
