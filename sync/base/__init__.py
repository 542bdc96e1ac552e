"""Helpers for every other package, without access to an API server: backoff, fair queues and
caches, histograms, tracing, callbacks and exceptions.
"""
