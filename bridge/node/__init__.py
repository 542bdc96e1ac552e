"""The virtual node at home: its Node object, its Lease, and the records that bridges keep there.

`node_object`, `conditions`, `remote_node_labels` and `field_ownership` compute the Node (pure);
`node_controller` and `node_lease` write it. Other commands and later bridges read
`join_record_annotation` and `namespace_ownership_lease`.
"""
