"""Retention of a log: cursors and pins hold records, the collector deletes others."""
