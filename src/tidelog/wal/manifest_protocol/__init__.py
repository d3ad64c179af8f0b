"""Commit by replacing the manifest, as Chroma's wal3 does."""
