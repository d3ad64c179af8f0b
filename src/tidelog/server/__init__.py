"""The HTTP server: an app, the routers that add routes to it, and the router of keyed logs."""
