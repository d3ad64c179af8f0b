"""The contents of a keyed log as a list of records: the oracle for its readers and writers.

It is plain Python without the engine's runs, slots and objects. Sequences may have gaps, so a test
passes the engine's sequences to the oracle (`KeyedHistory.place`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidelog.errors import NameTaken, NoSuchCheckpoint, SequenceRetired
from tidelog.keyed.values import CheckpointInfo, Retention, Sealing


@dataclass(frozen=True, slots=True)
class KeyedRecord:
    """A record, with the fields that a scan returns."""

    key: bytes
    sequence: int
    timestamp_us: int
    value: bytes

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value)


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A sealed segment: its id, its range of sequences, and the time of its seal."""

    id: int
    start: int
    limit: int
    sealed_us: int


@dataclass
class KeyedHistory:
    """All ordered records by key, and the limits of durable, compacted, sealed and retired ones.

    ``next`` is the next sequence. Records below ``durable`` are durable, those below ``compacted``
    are compacted, and those below ``oldest`` are retired. ``epoch`` counts the writing handles.
    """

    sealing: Sealing = field(default_factory=Sealing)
    retention: Retention = field(default_factory=Retention)
    by_key: dict[bytes, list[KeyedRecord]] = field(default_factory=lambda: defaultdict(list))
    next: int = 1
    durable: int = 1
    oldest: int = 1
    compacted: int = 1
    sealed: list[SealedSegment] = field(default_factory=list)
    first_segment: int = 0
    checkpoints: dict[str, CheckpointInfo] = field(default_factory=dict)
    kept: dict[str, KeyedHistory] = field(default_factory=dict)
    epoch: int = 0
    told: list[Callable[[], None]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def place(
        self, records: Sequence[tuple[bytes, bytes]], timestamp_us: int, first: int | None = None
    ) -> int:
        """Add records at the sequences from ``first`` on; return the first sequence."""
        start = self.next if first is None else first
        assert start >= self.next, "a sequence is given twice"
        for sequence, (key, value) in enumerate(records, start=start):
            self.by_key[key].append(KeyedRecord(key, sequence, timestamp_us, value))
        self.next = start + len(records)
        self.wake()
        return start

    def make_durable(self) -> None:
        """Make all ordered records durable."""
        if self.durable < self.next:
            self.durable = self.next
            for tell in list(self.told):
                tell()
            self.wake()

    def crash(self) -> int:
        """Drop the records that are not durable, as a killed process does; return their number."""
        lost = self.records(self.durable, self.next)
        for key in {record.key for record in lost}:
            self.by_key[key] = [one for one in self.by_key[key] if one.sequence < self.durable]
        self.next = self.durable
        self.wake()
        return len(lost)

    def wake(self) -> None:
        """Wake the tasks that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def records(
        self, start: int, limit: int, wanted: Callable[[bytes], bool] = lambda _: True
    ) -> list[KeyedRecord]:
        """Return the records of the wanted keys in a range of sequences, in their order."""
        start = max(start, self.oldest)
        found = [
            one
            for key, ones in self.by_key.items()
            if wanted(key)
            for one in ones
            if start <= one.sequence < limit
        ]
        return sorted(found, key=lambda one: one.sequence)

    def check_start(self, start: int, oldest: int) -> None:
        """Refuse a start at retired records; 0 means the oldest record left."""
        if 0 < start < oldest:
            raise SequenceRetired(
                "the first of these records were retired: start at the oldest sequence, or at 0",
                start=start,
                oldest=oldest,
            )

    @property
    def active_start(self) -> int:
        return self.sealed[-1].limit if self.sealed else self.oldest

    @property
    def active_id(self) -> int:
        return self.sealed[-1].id + 1 if self.sealed else self.first_segment

    def seal(self, now_us: int) -> SealedSegment | None:
        """Seal the active segment and return it; None if it is empty."""
        if not self.records(self.active_start, self.next):
            return None
        made = SealedSegment(self.active_id, self.active_start, self.next, now_us)
        self.sealed.append(made)
        return made

    def seal_if_due(self, now_us: int) -> None:
        """Seal the active segment if it has reached its size or age limit."""
        active = self.records(self.active_start, self.next)
        if not active:
            return
        bytes_max, age_us = self.sealing.bytes, self.sealing.age_us
        is_large = bytes_max is not None and sum(one.size for one in active) >= bytes_max
        is_old = age_us is not None and now_us - active[0].timestamp_us >= age_us
        if is_large or is_old:
            self.seal(now_us)

    def compact(self) -> int:
        """Mark all durable records as compacted; return the number of segments affected."""
        starts = [one.start for one in self.sealed] + [self.active_start]
        limits = [one.limit for one in self.sealed] + [self.next]
        touched = sum(
            bool(self.records(max(start, self.compacted), min(limit, self.durable)))
            for start, limit in zip(starts, limits, strict=True)
        )
        self.compacted = self.durable
        return touched

    def retire(self, retention: Retention, now_us: int) -> int:
        """Retire the oldest sealed segments that exceed the retention; return their number."""
        going = 0
        while going < len(self.sealed) and self._goes(going, retention, now_us):
            going += 1
        if going:
            self.compact()
            self.oldest = self.sealed[going - 1].limit
            self.first_segment = self.sealed[going - 1].id + 1
            del self.sealed[:going]
            for key, ones in list(self.by_key.items()):
                self.by_key[key] = [one for one in ones if one.sequence >= self.oldest]
        return going

    def _goes(self, number: int, retention: Retention, now_us: int) -> bool:
        """Return True if any setting of the retention retires a sealed segment."""
        segment = self.sealed[number]
        after = self.records(segment.limit, self.next)
        following = len(self.sealed) - number  # Including the active segment.
        by_age = (
            retention.age_us is not None
            and bool(after)
            and after[0].timestamp_us <= now_us - retention.age_us
        )
        by_bytes = retention.bytes is not None and sum(one.size for one in after) >= retention.bytes
        by_number = retention.segments is not None and following >= retention.segments
        return by_age or by_bytes or by_number

    def create_checkpoint(self, name: str, now_us: int) -> CheckpointInfo:
        """Create a checkpoint of the readable records."""
        if name in self.checkpoints:
            raise NameTaken(
                f"a checkpoint named {name!r} already exists: drop it, or choose another name"
            )
        self.make_durable()
        self.compact()
        made = CheckpointInfo(
            name=name, oldest=self.oldest, next_sequence=self.next, made_us=now_us
        )
        self.checkpoints[name] = made
        self.kept[name] = self.fork()
        return made

    def kept_at(self, name: str) -> KeyedHistory:
        """Return the contents at a checkpoint."""
        if name not in self.checkpoints:
            raise NoSuchCheckpoint(f"no checkpoint named {name!r}: list the checkpoints")
        return self.kept[name]

    def drop_checkpoint(self, name: str) -> None:
        """Remove a checkpoint."""
        if name not in self.checkpoints:
            raise NoSuchCheckpoint(f"no checkpoint named {name!r}: list the checkpoints")
        del self.checkpoints[name], self.kept[name]

    def fork(self) -> KeyedHistory:
        """Return an independent log that begins with the durable records."""
        made = KeyedHistory(
            sealing=self.sealing,
            retention=self.retention,
            next=self.durable,
            durable=self.durable,
            oldest=self.oldest,
            compacted=min(self.compacted, self.durable),
            sealed=[one for one in self.sealed if one.limit <= self.durable],
            first_segment=self.first_segment,
        )
        for one in self.records(0, self.durable):
            made.by_key[one.key].append(one)
        return made
