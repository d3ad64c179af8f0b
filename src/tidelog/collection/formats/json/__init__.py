"""The json format: lines and arrays."""
