"""Stores over a store: metered, hedged, cached."""
