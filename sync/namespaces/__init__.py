"""The remote namespaces: their mapping, ownership, and the watches for each."""
