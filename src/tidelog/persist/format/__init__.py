"""What lies in a shard's parts, as values and as bytes: pure."""
