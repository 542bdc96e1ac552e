"""The virtual node at home: its Node object, its Lease, and the records that bridges keep there.

`node_object`, `conditions` and `node_metadata_merge` compute the Node (pure); `node_controller` and
`node_lease` write the Node and its Lease. Other commands and later bridges read the records of
`join_record` and `namespace_ownership_lease`.
"""
