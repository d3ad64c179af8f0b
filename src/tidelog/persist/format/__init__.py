"""The contents of a shard's parts, as tables and as bytes. Pure."""
