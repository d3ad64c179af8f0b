"""Durable state machines: consensus holds the changes, and rollups hold the whole state."""
