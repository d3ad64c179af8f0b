"""Locations: `Location` and `open_location`."""

from tidelog.location.location import Location, open_location

__all__ = ["Location", "open_location"]
