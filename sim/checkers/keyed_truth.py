"""A model of a keyed log in plain Python: its records by sequence, and its state.

It reads runs as Parquet, and states as the changes that were decided. It shares no code with the
writer, the readers or their caches. Each change is checked against all records ever committed to
the wal: a run holds exactly the records of its window, and only a retention retires records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from typing import TypeAlias

import pyarrow.parquet as pq

from sim.checkers.demands import demand
from sim.checkers.watch_slots import SlotWatch
from tidelog.keyed.states.run import Run
from tidelog.keyed.states.state import KeyedDiff
from tidelog.keyed.values import Retention
from tidelog.wal.format.slot_object import decode_data

Record: TypeAlias = tuple[bytes, bytes, int]  # Key, value and time.
# Key, sequence, time and value, as a read returns them.
Row: TypeAlias = tuple[bytes, int, int, bytes]
Fetch: TypeAlias = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The fields of a run that the model needs."""

    id: str
    lower: int
    upper: int
    paths: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Point:
    """A checkpoint; it makes the records ``[oldest, next)`` readable."""

    oldest: int
    next: int
    runs: tuple[Stretch, ...]
    fork: str


@dataclass(slots=True)
class KeyedTruth:
    """One keyed log. ``letting_go`` are the retentions by which a client may retire now.

    Units: ``acknowledged`` holds (moment, sequence): since the moment, all records before the
        sequence are acknowledged as durable.
    """

    name: str
    wal: SlotWatch
    fetch: Fetch
    now_us: Callable[[], int]
    clocks_jump: bool = False
    records: dict[int, Record] = field(default_factory=dict)
    is_made: bool = False
    is_dropped: bool = False
    origin: str = ""
    retired: int = 1
    compacted: int = 1
    runs: list[Stretch] = field(default_factory=list)
    seals: list[tuple[int, int]] = field(default_factory=list)
    sealed_ever: set[int] = field(default_factory=set)
    checkpoints: dict[str, Point] = field(default_factory=dict)
    configured: list[Retention] = field(default_factory=list)
    letting_go: list[Retention] = field(default_factory=list)
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    runs_made: int = 0
    merges: int = 0
    _read: int = 0

    @property
    def next(self) -> int:
        """Return the sequence after all committed records."""
        return max(self.wal.position, 1)

    def known_at(self, moment: float) -> int:
        """Return the sequence before which all records were acknowledged at a moment."""
        return max((reached for at, reached in self.acknowledged if at <= moment), default=1)

    def rows(self, wants: Callable[[bytes], bool], start: int, limit: int) -> list[Row]:
        """Return some keys' records ``[start, limit)``, by sequence, retired ones included."""
        found = []
        for sequence in sorted(self.records):
            if start <= sequence < limit:
                key, value, time_us = self.records[sequence]
                if wants(key):
                    found.append((key, sequence, time_us, value))
        return found

    def named(self) -> set[str]:
        """Return the objects that runs and checkpoints name."""
        held = [*self.runs, *(run for point in self.checkpoints.values() for run in point.runs)]
        return {path for run in held for path in run.paths}

    def take_slots(self) -> None:
        """Read the slots that were committed to the wal since the last call."""
        for one in self.wal.committed[self._read :]:
            for row in decode_data(one.data, path="")[1].to_pylist():
                if row["key"] is not None:
                    self.records[row["position"]] = row["key"], row["body"], row["timestamp_us"]
        self._read = len(self.wal.committed)

    def follow(self, diff: KeyedDiff, source: KeyedTruth | None) -> None:
        """Apply a change that was decided.

        Raises:
            Violated: the change is not allowed.
        """
        if diff.dropped:
            self.is_dropped = True
            self.runs, self.seals, self.checkpoints = [], [], {}
            return
        if diff.made:
            demand(not self.is_made, "a keyed log was made twice", log=self.name)
            self.is_made = True
        if source is not None:
            self._begin_as(source)
            self.compacted = diff.added[0].lower if diff.added else diff.compacted or 1
        if diff.retention is not None:
            self.configured.append(diff.retention)
        self._add_runs(diff)
        if diff.merged is not None:
            self._merge(diff.merged.ids, diff.merged.run)
        for seal in diff.seals:
            self._seal(seal.limit, seal.at_us, is_new=source is None)
        if diff.retired is not None:
            self._retire(diff.retired, is_new=source is None)
        for name in diff.dropped_checkpoints:
            demand(name in self.checkpoints, "a checkpoint was dropped that was not there")
            del self.checkpoints[name]
        for name, one in diff.checkpoints.items():
            demand(not one.runs, "a checkpoint's change has runs, which the state has", name=name)
            runs = tuple(self.runs)
            demand(
                (one.retired, one.compacted) == (self.retired, self.compacted),
                "a checkpoint is of another state",
                name=name,
            )
            demand(one.fork or one.next == self.compacted, "a checkpoint lacks what is loose")
            self.checkpoints[name] = Point(one.retired, one.next, runs, one.fork)
        gone = set(diff.vanished) & self.named()
        demand(not gone, "what is named is said to have vanished", log=self.name, gone=gone)
        self._check_order()

    def _begin_as(self, source: KeyedTruth) -> None:
        first = self.wal.first
        demand(first <= source.next, "a fork begins after its source", first=first)
        shared = {at: one for at, one in source.records.items() if at < first}
        self.records = {**shared, **self.records}
        self.origin = source.name
        self.acknowledged.append((0.0, first))

    def _add_runs(self, diff: KeyedDiff) -> None:
        for run in diff.added:
            demand(
                run.lower == self.compacted,
                "a run does not begin where all before is compacted",
                log=self.name,
                lower=run.lower,
                compacted=self.compacted,
            )
            demand(run.lower < run.upper <= self.next, "a run ends past the wal", run=run)
            self._check_run(run)
            self.runs.append(stretch_of(run))
            self.compacted = run.upper
            self.runs_made += 1
        if diff.compacted is not None:
            demand(diff.compacted == self.compacted, "compacted is elsewhere than runs end")

    def _merge(self, ids: Sequence[str], run: Run) -> None:
        at = next((n for n, one in enumerate(self.runs) if one.id == ids[0]), None)
        old = self.runs[at : at + len(ids)] if at is not None else []
        demand([one.id for one in old] == list(ids), "what was merged is not there", log=self.name)
        assert at is not None
        demand(
            (old[0].lower, old[-1].upper) == (run.lower, run.upper), "a merge has another window"
        )
        self._check_run(run)
        self.runs[at : at + len(ids)] = [stretch_of(run)]
        self.merges += 1

    def _seal(self, limit: int, at_us: int, *, is_new: bool) -> None:
        last = self.seals[-1][0] if self.seals else self.retired
        if is_new:
            demand(limit > last, "a seal does not rise", log=self.name, limit=limit)
        demand(limit <= self.next, "what is to come was sealed", log=self.name, limit=limit)
        self.seals.append((limit, at_us))
        self.sealed_ever.add(limit)

    def _retire(self, retired: int, *, is_new: bool) -> None:
        demand(retired >= self.retired, "what was retired came back", log=self.name)
        if is_new:
            limits = [limit for limit, _ in self.seals]
            demand(retired in limits, "the active segment was retired", log=self.name, to=retired)
            demand(retired <= self.compacted, "what is loose was retired", log=self.name)
            allowed = [*self.letting_go, *self.configured[-1:]]
            demand(
                any(self._lets_go(one, retired) for one in allowed),
                "what no retention lets go of was retired",
                log=self.name,
                to=retired,
                by=allowed,
            )
        self.retired = retired
        self.runs = [run for run in self.runs if run.upper > retired]
        self.seals = [seal for seal in self.seals if seal[0] > retired]

    def _lets_go(self, retention: Retention, retired: int) -> bool:
        """Return True if a setting of a retention allows all before ``retired`` to go."""
        left = sum(limit > retired for limit, _ in self.seals) + 1
        if retention.segments is not None and left >= retention.segments:
            return True
        kept = sum(run.num_bytes for run in self.runs if run.lower >= retired)
        if retention.bytes is not None and kept >= retention.bytes:
            return True
        sealed_us = next(at_us for limit, at_us in self.seals if limit == retired)
        is_old = sealed_us <= self.now_us() - (retention.age_us or 0) or self.clocks_jump
        return retention.age_us is not None and is_old

    def _check_run(self, run: Run) -> None:
        """Demand that a run exists and holds exactly the records of its window, in order."""
        found: list[Row] = []
        for part in run.parts:
            data, directory = self.fetch(part.path), self.fetch(part.directory)
            demand(data is not None, "an object is named and not there", path=part.path)
            demand(directory is not None, "a directory is named and not there", path=part.directory)
            assert data is not None
            assert directory is not None
            demand(
                (len(data), len(directory)) == (part.num_bytes, part.directory_bytes),
                "a part has another size than it is said to have",
            )
            rows = pq.ParquetFile(BytesIO(data)).read(use_threads=False).to_pylist()
            found += [(r["key"], r["sequence"], r["timestamp_us"], r["value"]) for r in rows]
        demand(found == sorted(found), "a run is not in the order of keys and sequences", run=run)
        wanted = sorted(self.rows(lambda _: True, run.lower, run.upper))
        demand(
            found == wanted,
            "a run has other records than its window",
            log=self.name,
            window=(run.lower, run.upper),
            lacks=[row for row in wanted if row not in found],
            has=[row for row in found if row not in wanted],
        )

    def _check_order(self) -> None:
        for before, after in pairwise(self.runs):
            demand(before.upper == after.lower, "runs do not follow each other", log=self.name)
        for limit, _ in self.seals:
            within = [run for run in self.runs if run.lower < limit < run.upper]
            demand(not within, "a run reaches over the end of a segment", limit=limit, runs=within)
        if self.runs:
            demand(self.runs[-1].upper == self.compacted, "runs end elsewhere", log=self.name)


def stretch_of(run: Run) -> Stretch:
    return Stretch(run.id, run.lower, run.upper, run.paths, run.bytes)
