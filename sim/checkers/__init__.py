"""Checkers that stand outside of the code that they check."""
