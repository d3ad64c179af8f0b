"""Wrappers around a store: metered, hedged, cached."""
