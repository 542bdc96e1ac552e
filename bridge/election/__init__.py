"""Leader election among the replicas of one virtual node, by a Lease at home.

`elector` acquires and renews the Lease, `election_record` reads and patches it (pure),
`lease_records` are annotations on it, and `leave_lock` is how `bridge leave` takes it.
"""
