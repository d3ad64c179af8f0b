"""Parts become rows: snapshots, conditions, and what is too large to be held."""
