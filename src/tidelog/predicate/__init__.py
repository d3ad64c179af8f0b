"""Conditions: users' expressions that select rows, checked and evaluated in a sandbox."""
