"""`bridge prune`: leftovers of bridges in a remote, listed and removed."""
