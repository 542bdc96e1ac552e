"""Talking to API servers and making two clusters agree.

Here belong: the API client, informers and their store, work queues, one reconciler a kind,
the life of a pod, capacity and garbage collection. Here do not belong: the command line, the
Node object, and the kubelet HTTP server (all in `bridge`), nor rules of how an object is
written for the other cluster (all in `translators`).
"""
