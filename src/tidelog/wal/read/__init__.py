"""Read what both protocols have: the manifest, its tree, the records that it names."""
