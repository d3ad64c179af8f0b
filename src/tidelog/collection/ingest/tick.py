"""The results of a tick of an ingester, and of its commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.collection.ingest.engine import TickParts


@dataclass(frozen=True, slots=True)
class Tick:
    """The result of one tick, for the times ``[lower, upper)``.

    Shape: ``exhausted`` is True if the head had nothing left to ingest. ``computed`` is None if the
        binding had no ranges to compute. ``added`` are new columns that the source took.
    Units: ``won`` counts the commits of this ingester, and ``unchecked`` those of other ingesters
        that could not be compared. ``left_bytes`` of the head are not ingested. Counts of rows and
        bytes are 0 if another ingester made the last commit: that one reports them.
    """

    lower: int
    upper: int
    rows: int = 0
    bad: int = 0
    late: int = 0
    size_bytes: int = 0
    left_bytes: int = 0
    won: int = 0
    unchecked: int = 0
    exhausted: bool = False
    added: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    computed: TickParts | None = None


class Commits(NamedTuple):
    """The commits of a tick; ``is_completed`` is True if this ingester made the last of them."""

    won: int
    unchecked: int
    is_completed: bool
