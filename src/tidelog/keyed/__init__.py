"""Keyed logs: every key is its own ordered log (docs/concepts/keyed-logs.md). Begin at `port`."""
