"""Stores for tests, tidelog's own and its users': they are slow, fail, or record requests."""

from tidelog.testing.faulty import Delayed, Fault, Faulty, Request
from tidelog.testing.recorded import Recorded, RecordedRequest

__all__ = ["Delayed", "Fault", "Faulty", "Recorded", "RecordedRequest", "Request"]
