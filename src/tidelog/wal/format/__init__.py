"""Hold what lies in a log, as values and as bytes: pure, all of it."""
