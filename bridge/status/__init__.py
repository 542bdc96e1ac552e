"""The state of virtual nodes and their bridges, and the commands and pages that show it.

- Data: `node_pod_summary` is built from home's objects; a running bridge serves it with its own
  state at `status_endpoint`, and `status_client` reads both through home's API server.
- Presentation: `status_tree` lays a status out, for `terminal_output` and `dashboard_page`.
  `fleet_view` reduces the statuses of several remotes to an overview, for `terminal_output` and
  `bridge.dashboard`.
- `version_report` implements `bridge version`.

docs/reference/status.md lists every field.
"""
