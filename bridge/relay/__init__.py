"""Connections from home to pods of the remote, without a network between the two.

`listeners` listens at home for the Services that `sync.relay.forward` names, `connections` carries what
comes, each in its Service's turn (`rate`) and as many as the system grants (`room`). `balance`
chooses a pod for each, `dial` opens a port-forward to it through the remote's API server, and
`channels` speaks the protocol of that. What is moved is moved by `bridge.net.tunnel`.
"""
