"""What there is: collections, renditions, sources."""
