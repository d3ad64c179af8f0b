"""The reports of a run: its progress after each tick, and the summary at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, Final

from tidelog.collection.formats.names import twin_of
from tidelog.collection.ingest.evolving import column_around, is_name_of_column
from tidelog.collection.ingest.tick import Tick
from tidelog.errors import TidelogError
from tidelog.persist.format.schema import ShardSchema
from tidelog.store.prices import storage_dollars_a_month
from tidelog.store.wrappers.metered import Usage

NAMED_MAX: Final = 8  # A run names this many new columns of a tick, and counts the others.


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The results of a run, at its end or so far.

    If several ingesters run at once, the one that completes a tick counts its rows and bytes.

    Shape: ``waiting`` has the reason why a file cannot be ingested yet, and ``notes`` has other
        reports about files (such as a move), both by path. ``notes`` also has the errors of
        merges, by the id of the shard. ``upper`` is None before the first tick.
    Units: ``rows``, ``late`` and ``bad`` count rows, ``dropped`` counts values by field, and
        ``won`` counts the commits that this ingester made. ``size_bytes`` are the bytes of the
        source that were ingested, and ``left_bytes`` those of its head that were not. ``store``
        counts the requests of driver and executors, to the stores of the location and the source.
        ``driver_read_bytes`` are the bytes that this process read from both; with Spark, the
        executors read most. ``live_bytes`` are the bytes of the parts that states name: parts that
        a merge replaced use space too, until they are collected, and are not counted.
    """

    ticks: int = 0
    rows: int = 0
    late: int = 0
    bad: int = 0
    won: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    left_bytes: int = 0
    duration_us: int = 0
    upper: int | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    store: Usage = field(default_factory=Usage)
    driver_read_bytes: int = 0
    live_bytes: int = 0

    @property
    def dollars(self) -> float:
        return self.store.dollars

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as ``tidelog ingest --json`` prints them."""
        return {
            "ticks": self.ticks,
            "rows": self.rows,
            "late": self.late,
            "bad": self.bad,
            "won": self.won,
            "dropped": dict(self.dropped),
            "seconds": round(self.duration_us / 1e6, 3),
            "bytes": self.size_bytes,
            "left_bytes": self.left_bytes,
            "upper": self.upper,
            "waiting": dict(self.waiting),
            "notes": dict(self.notes),
            "store": self.store.to_dict(),
            "driver_read_bytes": self.driver_read_bytes,
            "dollars": round(self.dollars, 9),
            "live_bytes": self.live_bytes,
            "storage_dollars_a_month": storage_dollars_a_month(self.live_bytes),
        }


_SUMS: Final = ("ticks", "rows", "late", "bad", "won", "size_bytes", "store", "driver_read_bytes")


def with_counts_of(newest: Summary, *others: Summary) -> Summary:
    """Return a summary with the counts of others added; it keeps its sizes, times and reports."""
    dropped: Counter[str] = Counter()
    for one in (newest, *others):
        dropped.update(one.dropped)
    sums = {name: reduce(add, [getattr(one, name) for one in (newest, *others)]) for name in _SUMS}
    return replace(newest, dropped=dict(dropped), **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """A report of a run: at its start, after each tick, and before it retries a failed store.

    ``tick`` is None except after a tick. ``trouble`` is the error after which the run pauses for
    ``pause_us``. ``warnings`` name columns of files that the source lacks, each once in a run.
    """

    so_far: Summary
    tick: Tick | None = None
    warnings: tuple[str, ...] = ()
    trouble: TidelogError | None = None
    pause_us: int = 0


def column_warnings(added: Sequence[str], lacking: Sequence[str], schema: ShardSchema) -> list[str]:
    """Return a run's warnings about new columns, and about fields that the source lacks."""
    took = [f"the source took the new column {name!r}" for name in added]
    lacks = [lacking_column(name, schema) for name in lacking]
    return [
        *_first_of(took, "new columns were taken: 'tidelog source describe' lists them"),
        *_first_of(lacks, "columns of files are dropped: the count 'dropped' names them"),
    ]


def _first_of(texts: Sequence[str], what: str) -> list[str]:
    more = len(texts) - NAMED_MAX
    return [*texts[:NAMED_MAX], *([f"{more:,} more {what}"] if more > 0 else [])]


def lacking_column(name: str, schema: ShardSchema) -> str:
    """Return the warning about a field of the data that the source lacks, with the remedy."""
    twin = twin_of(name, schema.names)
    if twin is not None:
        return (
            f"files have a column {name!r}, but the source has {twin!r}, which differs only in "
            "case: its values are dropped; to ingest them, create the source with the option "
            "ignore_case"
        )
    outer = column_around(name, schema)
    if outer is not None:
        return (
            f"files have a field {name!r} that the type of the column {outer!r} lacks: its values "
            f"are dropped; to ingest them, create another source with another type of {outer!r}"
        )
    if any(name in one.names for one in schema.known):
        return (
            f"files have the column {name!r}, which was dropped from the source: its values are "
            "dropped; to ingest them again, create another source"
        )
    if not is_name_of_column(name):
        return (
            f"files have a column {name!r}, but no column can have this name: its values are "
            "dropped; to ingest them, rename it in the files"
        )
    return (
        f"files have a column {name!r} that the source lacks: its values are dropped; to ingest "
        "them from now on, add the column with 'tidelog source alter'; to stop at them, ingest "
        "with --strict (in Python: strict=True)"
    )
