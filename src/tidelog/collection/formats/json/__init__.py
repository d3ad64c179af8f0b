"""Json, as lines and as arrays."""
