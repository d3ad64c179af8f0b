"""Crash points, and the stories in which they lie."""
