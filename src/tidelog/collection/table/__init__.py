"""Tables: collections that programs write."""
