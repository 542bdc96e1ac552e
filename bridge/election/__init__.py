"""Leader election among the replicas of one virtual node, by a Lease at home.

`elector` acquires and renews the Lease, `election_lease` reads and patches it (pure), and
`election_lease_annotations` are records on it. For commands, `serving_bridge_lookup` finds the
bridge that holds the Lease, and `leave_lock` holds the Lease during `bridge leave`.
"""
