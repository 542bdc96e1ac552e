"""The running bridge: joins, replicas, and their servers, started and stopped in order."""
