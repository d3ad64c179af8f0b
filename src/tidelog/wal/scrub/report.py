"""The range of a scrub, and its report. Pure.

Source: wal3, "Scrub"; docs/internals/wal3.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidelog.core.setsum import Setsum
from tidelog.errors import UsageError
from tidelog.wal.read.bounds import check_range


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of one object of a log."""

    path: str
    why: str


@dataclass(slots=True)
class ScrubReport:
    """The report of a scrub.

    Shape: ``setsum`` is the setsum of all intact records. ``unnamed`` are the keys of objects that
    the log does not name.
    """

    problems: list[Problem] = field(default_factory=list)
    setsum: Setsum = field(default_factory=Setsum.zero)
    records: int = 0
    bytes_read: int = 0
    fragments: int = 0
    snapshots: int = 0
    unnamed: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "problems": [{"path": p.path, "why": p.why} for p in self.problems],
            "setsum": self.setsum.hex(),
            "records": self.records,
            "bytes_read": self.bytes_read,
            "fragments": self.fragments,
            "snapshots": self.snapshots,
            "unnamed": self.unnamed,
        }


@dataclass(frozen=True, slots=True)
class ScrubRange:
    """The positions ``[start, limit)``; by default all. Start 0 is the oldest retained position."""

    start: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        check_range(self.start, self.limit)
        if self.limit is not None and self.limit <= self.start:
            raise UsageError(
                f"the range from {self.start} to {self.limit} is empty: pass a limit after the "
                "start"
            )

    @property
    def is_all(self) -> bool:
        return not self.start and self.limit is None

    def holds(self, start: int, limit: int) -> bool:
        """Return True if the range has any of the positions ``[start, limit)``."""
        return limit > self.start and (self.limit is None or start < self.limit)


@dataclass(frozen=True, slots=True)
class Before:
    """The state of a log before a fragment: the setsum of its records, and its bytes."""

    setsum: Setsum
    bytes: int
