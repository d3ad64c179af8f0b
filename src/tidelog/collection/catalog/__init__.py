"""The catalog of a location: its collections, their renditions, and its sources."""
