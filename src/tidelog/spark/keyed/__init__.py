"""Keyed logs in Spark: batch reads, streams, writes by batches, and compaction by tasks."""
