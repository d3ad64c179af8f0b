"""The simulator: tidelog's real code on a seeded loop, in virtual time, on a store that misbehaves.

``python -m sim --seeds N --seconds S`` is the long form; `tests/sim` runs the short one.
"""
