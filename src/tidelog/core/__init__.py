"""Values and pure functions that every package uses."""
