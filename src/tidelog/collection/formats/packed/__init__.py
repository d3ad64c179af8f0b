"""Text that is compressed."""
