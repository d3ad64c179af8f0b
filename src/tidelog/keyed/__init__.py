"""Keyed logs: every key is its own ordered log. See ``docs/keyed.md``; begin at ``port.py``."""
