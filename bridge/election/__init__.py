"""Leader election among the replicas of one virtual node."""
