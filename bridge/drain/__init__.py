"""Cordons, uncordons and drains virtual nodes as kubectl does.

`drain_procedure` orders the steps, `pod_filters` selects the pods (kubectl's drain filters) and
`eviction` evicts them. `bridge leave --drain` uses the last two.
"""
