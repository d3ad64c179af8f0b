"""Broken builds of tidelog, each of which some instrument must catch."""
