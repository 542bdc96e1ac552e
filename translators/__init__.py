"""Pure translation of objects from one cluster to the other.

Here belong functions on plain dicts: what an object of home looks like in the remote, what a
status of the remote looks like at home, what a pod refers to, how names and owners are written,
and what differs between two objects. No function here changes what it is given, waits, reads a
clock, draws a random number, logs, or imports a third party. What comes out may share parts with
what went in; whoever changes it copies first.
"""
