"""`bridge bug-report`: an archive without secrets for the diagnosis of problems.

`collector` reads both clusters and writes the files, and `redaction` selects by an allowlist what
may be included. Nothing here changes a cluster; no running bridge imports this.
"""
