"""Schedules of ingesters and changing files.

Chance decides each step, and a plain list is the model. Unlike in the simulator (`sim`), the files
are real. They grow, are truncated, compressed, renamed and copied. Several ingesters with different
tick sizes and clocks run at once. They read, die and resume.
"""
