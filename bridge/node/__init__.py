"""The virtual node at home: its Node object, its Lease, and the records that bridges keep there.

`node_object`, `conditions`, `shared_labels` and `field_ownership` compute the Node (pure);
`controller` and `lease` write it. `join_record` and `namespace_record` are read by other commands
and later bridges.
"""
