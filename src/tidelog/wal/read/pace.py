"""How many objects a scan reads ahead: enough to keep the checking threads busy. Pure.

An object that is fetched long before its check takes memory, and has left the processor's caches by
then. From a local directory, eight objects ahead are half as fast as three. From a slow store,
eight are not too many. So a scan measures both times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pyarrow as pa

from tidelog.core.lookahead import AT_ONCE_MAX

_NEWEST_SHARE = 0.3


@dataclass(slots=True)
class ScanPace:
    """Moving averages of a scan's times; ``cores`` objects are checked at once."""

    cores: int = field(default_factory=pa.cpu_count)
    fetch_us: float | None = None
    check_us: float = 0.0

    def note(self, *, fetch_us: int, check_us: int) -> None:
        """Note the time of an object's fetch, and the time of its check."""
        if self.fetch_us is None:
            self.fetch_us, self.check_us = fetch_us, check_us
        self.fetch_us += _NEWEST_SHARE * (fetch_us - self.fetch_us)
        self.check_us += _NEWEST_SHARE * (check_us - self.check_us)

    def wanted(self) -> int:
        """Return how many objects should be in work, fetched or checked."""
        if self.fetch_us is None:
            return AT_ONCE_MAX
        fetched_meanwhile = math.ceil(self.cores * self.fetch_us / max(self.check_us, 1.0))
        return min(AT_ONCE_MAX, self.cores + max(1, fetched_meanwhile))
