"""Stored objects of a log as values and as bytes. All modules here are pure."""
