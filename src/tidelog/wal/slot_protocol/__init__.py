"""Slot commit: the writer, the fence that ends a writer's epoch, and reads past the manifest."""
