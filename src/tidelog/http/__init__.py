"""Keyed logs over HTTP: the messages (`api`) and a client (`client`)."""
