"""Checkers that do not share code with what they check."""
