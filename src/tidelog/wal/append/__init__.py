"""Appends gathered into batches, for the writers of both protocols."""
