"""Reading a keyed log: runs, loose fragments, and views of both."""
