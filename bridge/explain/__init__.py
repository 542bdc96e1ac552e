"""`bridge explain`: where a pod runs or would run, how it is translated, and why it waits.

`cluster_lookup` reads both clusters, `candidate_ranking` ranks the virtual nodes, `json_report` and
`dependency_report` build the report as JSON data, and `text_report` formats it. `claim_lookup` and
`claim_report` do the same for a PersistentVolumeClaim.
"""
