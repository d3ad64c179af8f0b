"""Ingestion: ticks of one source, and runs of ticks."""
