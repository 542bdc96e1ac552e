"""Checks of the two clusters and the virtual node, as data. Nothing here writes.

`catalog` is the one table of checks, and explains how to add one. `check_command` runs all of them
for `bridge check`, `join_checks` those that `bridge join` requires. Each check runs by itself: one
that cannot look hides no other.
"""
