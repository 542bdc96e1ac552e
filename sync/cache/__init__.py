"""Lists, watches and stores: a local copy of the objects of one resource."""
