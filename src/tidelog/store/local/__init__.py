"""A store in a directory of this machine, with fsync."""
