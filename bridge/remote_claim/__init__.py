"""The claim: a Lease in the remote that protects a node's objects from another home of the same
identity.

`claim_record` reads and patches it (pure), `claim_keeper` holds it while a bridge serves the node,
and `claim_removal` is for commands.
"""
