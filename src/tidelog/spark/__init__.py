"""Spark: data sources, jobs, and a session that starts quickly and keeps quiet."""
