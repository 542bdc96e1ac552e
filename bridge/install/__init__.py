"""A bridge that runs in home's cluster: what is installed, how that is applied, and removed again.

`objects` says what, `selfcontained` makes the remote's kubeconfig fit for a Secret, `applying` puts
it into home and waits, `installed` finds it again and takes it away. A bridge itself imports none
of this.
"""
