"""Broken builds of tidelog, each of which a simulator or model must catch."""
