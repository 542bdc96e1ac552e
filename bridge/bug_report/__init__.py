"""`bridge bug-report`: an archive without secrets for the diagnosis of problems.

`collector` reads both clusters, `redaction` selects by an allowlist what may be included, and
`archive` writes the files. Nothing here changes a cluster; no running bridge imports this.
"""
