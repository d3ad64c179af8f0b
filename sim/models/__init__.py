"""Exhaustive models: a protocol's every interleaving at a small scope.

Seeds sample long runs of the real code; a model visits all short runs of its idea. Each model has
rules that can be broken by name, and each broken rule must end in a counterexample.
``python -m sim.models`` is the long form; `tests/sim` runs the short one.
"""
