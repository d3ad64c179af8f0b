"""Compressed text."""
