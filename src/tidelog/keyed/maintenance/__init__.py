"""Keeping a keyed log small: compaction, retention and collection."""
