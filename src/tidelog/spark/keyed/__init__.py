"""Keyed logs in Spark: read at once and as a stream, written by batches, compacted by tasks."""
