"""Merges, sweeps, scrubs, and what of a shard's objects is needed."""
