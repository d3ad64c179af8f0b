"""Raw sources: their messages are surveyed before a binding names them, and read again after."""
