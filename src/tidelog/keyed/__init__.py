"""Keyed logs: each key has its own ordered log (docs/concepts/keyed-logs.md). Start at `port`."""
