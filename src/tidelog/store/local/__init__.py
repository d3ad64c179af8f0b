"""Keep objects in a directory of this machine, fsynced."""
