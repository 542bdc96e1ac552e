"""Finding and deleting what the bridge created in the remote."""
