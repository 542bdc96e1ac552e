"""Connections from pods in the remote to pods at home.

`relay_agent` runs in the relay agent's Pod in the remote. The bridge at home has a
`control_connection` to each agent, and `home_pod_connections` forwards the connections that agents
accept. `control_messages` and `framing` define the wire format between the two.
"""
