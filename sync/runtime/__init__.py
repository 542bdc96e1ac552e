"""The runtime of every controller: work queues, workers, Events and log fields.

Nothing here is specific to a resource; the controllers of resources have packages of their own.
"""
