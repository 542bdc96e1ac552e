"""A report for somebody who is to find out what went wrong, with nothing in it that is secret.

`redaction` decides what of an object may be told, by naming what may: whatever it does not know
stays out. `collect` reads both clusters, and `archive` writes. Nothing here changes a cluster.

No running bridge imports this.
"""
