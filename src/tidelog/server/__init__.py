"""What tidelog serves over HTTP: an app that rooms add routes to, and the room of keyed logs."""
