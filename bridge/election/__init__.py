"""Leader election among the replicas of one virtual node, by a Lease at home.

`elector` acquires and renews the Lease with the records on it, and `election_lease` reads and
patches it (pure). For commands, `serving_bridge_lookup` finds the bridge that holds the Lease, and
`leave_lock` holds the Lease during `bridge leave`.
"""
