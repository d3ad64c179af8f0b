"""The state of a shard and its transitions. Pure."""
