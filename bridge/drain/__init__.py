"""Cordon, uncordon and drain virtual nodes as kubectl does.

`node_commands` implements the commands, `filters` selects the pods (kubectl's drain filters) and
`eviction` evicts them. `bridge leave --drain` uses the last two.
"""
