"""Versions by key, each following the one before: the place where it is decided who was first."""
