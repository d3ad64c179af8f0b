"""Commit by creating slots: the writer, the fence that ends it, and reading past the manifest."""
