"""For tests, tidelog's and its users': stores that are slow, that fail, and that remember."""

from tidelog.testing.delayed import Delayed
from tidelog.testing.faulty import Fault, Faulty, Request
from tidelog.testing.recorded import Recorded, RecordedRequest

__all__ = ["Delayed", "Fault", "Faulty", "Recorded", "RecordedRequest", "Request"]
