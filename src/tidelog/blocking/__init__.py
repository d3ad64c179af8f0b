"""The blocking API: classes for programs without an event loop of their own."""
