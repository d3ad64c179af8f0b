"""Conditions: what a user may ask of rows, checked, and computed in a sandbox."""
