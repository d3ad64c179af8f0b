"""Avro: container files, and how datums become Arrow columns. Pure."""
