"""Work queues, the workers that reconcile keys, and the Events that they record."""
