"""The bridge process: command line, virtual node, kubelet API, election, relay.

This package wires the parts together and faces users and home's API server. Translation rules
belong in `translators`; talking to API servers and reconciling belong in `sync`.
"""
