"""Consensus: for each key, a sequence of records; a conditional append decides each race."""
