"""The permissions of the bridge: one table, access reviews of it, and the RBAC objects that grant
it."""
