"""Crash points, and the stories that contain them."""
