"""The runtime of every controller: work queues, workers, Events and log fields. Nothing here knows
a resource; controllers of resources have packages of their own.
"""
