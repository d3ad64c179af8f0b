"""What a shard is at a time, and what it may become: pure."""
