"""The process: composition root, command line, virtual node, kubelet HTTP API.

Here belongs what wires the parts together and what faces people and home's API server. Rules of
translation belong in `translators`; talking to API servers and converging in `sync`.
"""
