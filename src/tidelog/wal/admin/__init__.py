"""Make a log from another, make its manifest again, and destroy it."""
