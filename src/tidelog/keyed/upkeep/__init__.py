"""How a keyed log is kept small: compaction, retention, collection."""
