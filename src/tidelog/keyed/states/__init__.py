"""The state of a keyed log and its transitions. Pure."""
