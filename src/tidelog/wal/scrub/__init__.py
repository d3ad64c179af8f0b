"""Scrub: read a whole log, and report all faults."""
