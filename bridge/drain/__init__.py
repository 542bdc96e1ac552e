"""Cordon, uncordon and drain virtual nodes as kubectl does.

`cordon_and_drain` implements the commands, `pod_filters` selects the pods (kubectl's drain filters)
and `eviction` evicts them. `bridge leave --drain` uses the last two.
"""
