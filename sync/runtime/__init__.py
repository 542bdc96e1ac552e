"""What every controller runs on: work queues, workers, Events and log fields. Nothing here knows a
resource; controllers of resources have packages of their own.
"""
