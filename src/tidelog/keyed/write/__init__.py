"""Writing a keyed log: appends, and their records in memory."""
