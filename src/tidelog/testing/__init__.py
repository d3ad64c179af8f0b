"""Stores for tests, tidelog's own and its users': they are slow, fail, or record requests."""

from tidelog.testing.faulty import DelayedStore, Fault, FaultyStore, Request
from tidelog.testing.recorded import RecordedRequest, RecordedStore

__all__ = ["DelayedStore", "Fault", "FaultyStore", "RecordedRequest", "RecordedStore", "Request"]
