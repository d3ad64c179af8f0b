"""Reads of the parts that both protocols share: the manifest, its tree, and the records."""
