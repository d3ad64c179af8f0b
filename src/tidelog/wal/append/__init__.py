"""Gather appends into batches: what the writers of both protocols share."""
