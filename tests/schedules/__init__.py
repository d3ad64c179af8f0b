"""Ingesters at work on files that change: who does what when is drawn, and a plain list knows all.

Unlike the simulator (`sim`), the files are real ones: they grow, are torn, compressed, renamed and
copied while several ingesters, of other tick sizes and clocks, read, die and go on.
"""
