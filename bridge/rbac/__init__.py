"""The permissions of the bridge: one table, the RBAC objects, and their verification."""
