"""File formats: how rows are stored in files, and how they are decoded. Pure."""
