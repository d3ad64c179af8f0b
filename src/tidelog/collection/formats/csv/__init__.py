"""The csv format: dialects, fields and types."""
