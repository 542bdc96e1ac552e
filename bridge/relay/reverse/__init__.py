"""Connections from pods in the remote to pods at home.

`relay_agent` runs in the relay agent's Pod in the remote. The bridge at home has a
`control_connection` to each agent, and `home_pod_connections` forwards the connections that agents
accept. `home_pod_datagrams` forwards the datagrams of UDP that `agent_datagrams` receives there, on
one `datagram_stream`. `control_messages` and `framing` define the wire format between the two.
"""
