"""`bridge prune`: lists and removes objects that bridges left in a remote; needs no home."""
