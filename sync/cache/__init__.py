"""A local copy of one resource's objects: `Informer` lists and watches, `Store` has the result.

Code that calls an API server only through an informer belongs here; requests belong to `sync.kube`.
"""
