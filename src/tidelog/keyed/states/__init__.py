"""What a keyed log is, and what it may become: pure."""
