"""Schedules of ingesters and changing files.

Chance decides each step, and a plain list is the model. Unlike the simulator (`sim`), the files are
real. They grow, are truncated, compressed, renamed and copied. Concurrently, several ingesters with
different tick sizes and clocks read, die and resume.
"""
