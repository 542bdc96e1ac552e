"""Divides the remotes of one source among the replicas of `bridge run` that serve it.

`assignment` decides who should serve a remote, and `shard_plan` what one replica runs meanwhile
(both pure). `membership_record` is a replica's record on home's Lease `shards` (pure), `membership`
keeps and watches it, and `recent_failures` remembers what this replica leaves to others (pure).
`sharded_source` narrows the source of `bridge.fleet` to this replica's share.
The election Lease of each node (`bridge.election`) remains the authority on who writes.
"""
