"""What is the matter with two clusters and the node between them, as data.

`bridge.checks.catalog` has every check with its id and what it means; the modules beside it look; and
`bridge.checks.runner` runs them, before a join or of a node that exists, each by itself: what one
cannot find out hides nothing that another finds. Nothing here writes.

No running bridge imports this.
"""
