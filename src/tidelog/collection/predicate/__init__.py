"""Conditions: what a user may ask of rows, and what bounds tell of it."""
