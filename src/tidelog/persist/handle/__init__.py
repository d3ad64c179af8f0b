"""The handle of a shard, and what it is used by: writers, readers under a lease, listeners."""
