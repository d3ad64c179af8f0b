"""What a run of an ingester tells of itself, as it goes and at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.collection.formats.names import twin_of
from tidelog.collection.ingest.ingest import Tick
from tidelog.errors import TidelogError
from tidelog.store.prices import storage_dollars_a_month
from tidelog.store.wrappers.metered import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The results of a run, so far or in all.

    If several ingesters run at once, the one that completes a tick counts its rows and bytes.

    Units: ``late`` and ``bad`` are rows, ``dropped`` counts values by field, ``won`` the commits
        that were ours; ``size_bytes`` is what was taken of the source and ``left_bytes`` what its
        head still has; ``store`` is what driver and executors asked of the location's store and
        the source's; ``upper`` is None before the first tick; ``waiting`` are files that cannot be
        taken yet, by path, and why, and ``notes`` say what else there is to tell of files (those
        that were moved). ``driver_read_bytes`` is what this process read of both: on
        Spark, a small part of what executors did. ``live_bytes`` are parts that the states name:
        what merges replaced lies there too, until it is collected.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """A report of a run: at its start, after each tick, and before it tries a failed store again.

    ``tick`` is None except after a tick. ``trouble`` is the error after which the run pauses for
    ``pause_us``. ``warnings`` name columns of files that the source lacks, each once in a run.
    """

    so_far: Summary
    tick: Tick | None = None
    warnings: tuple[str, ...] = ()
    trouble: TidelogError | None = None
    pause_us: int = 0


def new_column(name: str, columns: Sequence[str]) -> str:
    """Return what to say of a column in files that the source lacks, and what to do."""
    twin = twin_of(name, columns)
    if twin is not None:
        return (
            f"files have a column {name!r}, and the source has {twin!r}, which differs by case "
            "alone: its values are left out; to take them, create the source with --ignore-case"
        )
    return (
        f"files have a column {name!r} that the source lacks: its values are left out; to take "
        "them, create another source whose --schema has it; to stop at them, pass --strict"
    )
