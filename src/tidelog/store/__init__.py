"""Objects by key: the port, its implementations, and the wrappers around them."""
