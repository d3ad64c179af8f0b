"""How far ahead a scan fetches: as far as keeps the threads busy that check, and no further. Pure.

What is fetched long before it is checked takes memory, and has left the processor's caches by then:
from a local directory, eight objects ahead are half as quick as three. From a store that takes its
time for each, eight are not too many. So the times of both are watched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pyarrow as pa

from tidelog.lookahead import AT_ONCE_MAX

_NEWEST_SHARE = 0.3


@dataclass(slots=True)
class ScanPace:
    """The times of a scan so far, the newest of which count most; ``cores`` check side by side."""

    cores: int = field(default_factory=pa.cpu_count)
    fetch_us: float | None = None
    check_us: float = 0.0

    def note(self, *, fetch_us: int, check_us: int) -> None:
        """Note how long an object took, from the request to its bytes, and from there on."""
        if self.fetch_us is None:
            self.fetch_us, self.check_us = fetch_us, check_us
        self.fetch_us += _NEWEST_SHARE * (fetch_us - self.fetch_us)
        self.check_us += _NEWEST_SHARE * (check_us - self.check_us)

    def wanted(self) -> int:
        """Return how many objects should be under way: being checked, or fetched meanwhile."""
        if self.fetch_us is None:
            return AT_ONCE_MAX
        fetched_meanwhile = math.ceil(self.cores * self.fetch_us / max(self.check_us, 1.0))
        return min(AT_ONCE_MAX, self.cores + max(1, fetched_meanwhile))
