"""Checks of the two clusters and the virtual node, as data. Nothing here writes.

`catalog` is the table of checks, and explains how to add one. `check_runner` runs all of them for
`bridge check`, `required_at_join` those that `bridge join` requires. Checks run independently: a
check that fails hides no other.
"""
