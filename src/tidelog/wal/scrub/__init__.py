"""Read everything, and tell all that is wrong."""
