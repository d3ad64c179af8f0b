"""The handle of a shard, and its writers, leased readers and listeners."""
