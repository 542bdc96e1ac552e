"""A bridge that runs in home's cluster: what is installed, how that is applied, and removed again.

`installation` says for which node and by which names, `objects` and `webhook` what, `shapes` what
their pods have in common. `selfcontained` makes the remote's kubeconfig fit for a Secret,
`applying` puts it all into home, `waiting` waits, `installed` finds it again and takes it away. A
bridge itself imports none of this.
"""
