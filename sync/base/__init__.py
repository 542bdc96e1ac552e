"""Helpers that every other package may use and that know no API server: backoff, queues, caches,
histograms, callbacks, exceptions.
"""
