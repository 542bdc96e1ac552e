"""A local copy of one resource's objects: an `informer` lists and watches into a `store`.

The parts of an informer belong here; the requests that it sends belong to `sync.kube`.
"""
