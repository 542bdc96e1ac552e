"""Lists and removes what bridges left behind in a remote, without access to any home."""
