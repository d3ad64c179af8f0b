"""Merges, sweeps, scrubs, and the use of a shard's objects."""
