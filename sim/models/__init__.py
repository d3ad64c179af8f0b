"""Exhaustive models: a protocol's every interleaving at a small scope.

Seeds sample long runs of the real code. A model visits all short runs of the protocol. Each model
has rules that can be broken by name, and each broken rule must yield a counterexample. ``python -m
sim.models`` is the long run; `tests/sim` does the short one.
"""
