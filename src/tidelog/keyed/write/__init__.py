"""How a keyed log is written: appends, and what of them is in memory."""
