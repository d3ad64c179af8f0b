"""How the records of a keyed log are read: runs, loose fragments, and views over both."""
