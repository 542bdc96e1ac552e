"""Leader election among the replicas of one virtual node, by a Lease at home.

`elector` acquires and renews the Lease, `election_lease` reads and patches it (pure), and
`handover_annotations` are records on it. Of commands, `serving_bridge_lookup` finds the bridge that
holds the Lease, and `leave_lock` holds it during `bridge leave`.
"""
