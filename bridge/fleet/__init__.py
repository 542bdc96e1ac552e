"""The remotes that one process joins: desired by a source, and started and stopped to match.

`desired_state` defines what a source yields, and `config_file_source` is the source of
`bridge run`. `plan` decides what to start, restart and stop, and `supervisor` acts.
`fleet_report` has the result for status and metrics.
"""
