"""Objects by key: the port, its implementations, and wrappers around them."""
