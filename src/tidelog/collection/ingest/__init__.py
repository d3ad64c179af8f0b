"""The recipe: ticks, and runs of them."""
