"""A keyed log in memory, with the same interface as the engine; see `kit.keyed_history`.

The port leaves the order of records with different keys, and the size of a page, to the
implementation. This model has one fixed choice, and tests must not depend on it.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import pyarrow as pa

from kit.keyed_history import KeyedHistory, KeyedRecord, SealedSegment
from kit.keyed_reading import ModelScan, pages_of_keys
from tidelog.core.clock import Clock, SystemClock, micros_of, wall_us
from tidelog.errors import (
    Fenced,
    HandleError,
    LogFull,
    NameTaken,
    NoSuchLog,
    NoSuchSegment,
    UsageError,
)
from tidelog.keyed.port import KeyedReads, KeyedScan, KeyedWrites
from tidelog.keyed.values import (
    DURABLE,
    MEMORY,
    CheckpointInfo,
    Count,
    KeyedInfo,
    KeyedQuery,
    Keys,
    Retention,
    Sealing,
    Segment,
    check_key,
    check_sequences,
)

VALUE_BYTES_MAX = 64 * 1024 * 1024


@dataclass
class Weather:
    """The faults of appends: a full log, or an error before or after the records are stored."""

    is_full: bool = False
    errors: list[tuple[Exception, bool]] = field(default_factory=list)


class ModelReads(KeyedReads):
    """A handle that reads; it shows the records that were durable at its last refresh."""

    def __init__(self, name: str, history: KeyedHistory, clock: Clock | None = None) -> None:
        self.name = name
        self.history = history
        self.clock = clock or SystemClock()
        self.page_rows = 1_000
        self.is_closed = False
        self._oldest, self._next = history.oldest, history.durable

    @property
    def oldest(self) -> int:
        return max(self._oldest, self.history.oldest)

    @property
    def frontier(self) -> int:
        """Return the sequence before which this handle shows all records."""
        return self._next

    def at_checkpoint(self, name: str) -> ModelReads:
        """Return a handle that shows the contents at a checkpoint."""
        return ModelReads(self.name, self.history.kept_at(name), self.clock)

    def scan(
        self,
        keys: Keys | bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        query = KeyedQuery(
            keys=Keys.of(keys), start=start, limit=limit, rows=rows, newest_first=newest_first
        )
        self._check_open()
        return ModelScan(self, query)

    def follow(self, keys: Keys | bytes | None = None, *, start: int | None = None) -> KeyedScan:
        wanted = Keys.all() if keys is None else Keys.of(keys)
        query = KeyedQuery(keys=wanted, start=self.frontier if start is None else start)
        self._check_open()
        return ModelScan(self, query, is_endless=True)

    async def count(self, key: bytes, start: int = 0, limit: int | None = None) -> int:
        check_key(key)
        check_sequences(start, limit)
        self._check_open()
        self.history.check_start(start, self.oldest)
        upper = self.frontier if limit is None else min(limit, self.frontier)
        return len(self.history.records(start, upper, lambda one: one == key))

    async def count_approximate(
        self, key: bytes, start: int = 0, limit: int | None = None
    ) -> Count:
        found = await self.count(key, start, limit)
        return Count(value=found, least=found, most=found)

    def keys(
        self,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        segments: tuple[int, int | None] | None = None,
    ) -> AsyncIterator[pa.Table]:
        listed = Keys.prefix(prefix)
        check_key(after or b"")
        start, limit = (0, None) if segments is None else self._window_of(*segments)
        self._check_open()
        wanted = partial(_is_listed, listed, after)
        return pages_of_keys(self, wanted, start=start, limit=limit)

    def _window_of(self, first: int, last: int | None) -> tuple[int, int | None]:
        """Return the sequences of the segments ``[first, last)``."""
        for number in (first, last):
            if number is not None and (type(number) is not int or number < 0):
                raise UsageError("a segment's id is a whole number (int) from 0 on", id=number)
        if last is not None and last < first:
            raise UsageError("the range of segments is reversed", first=first, last=last)
        windows = [(one.id, one.start, one.limit) for one in self._segments()]
        if not windows or windows[-1][2] is not None:  # The active one, maybe empty.
            windows.append((self.history.active_id, self.history.active_start, None))
        found = [one for one in windows if first <= one[0] and (last is None or one[0] < last)]
        if not found:
            raise NoSuchSegment("no segment has that id: list the segments", id=first)
        return found[0][1], found[-1][2]

    async def segments(self, start: int = 0, limit: int | None = None) -> list[Segment]:
        check_sequences(start, limit)
        self._check_open()
        self.history.check_start(start, self.oldest)
        upper = self.frontier if limit is None else limit
        return [
            one
            for one in self._segments()
            if one.start < upper and (one.limit is None or one.limit > start)
        ]

    def _segments(self) -> list[Segment]:
        history = self.history
        sealed = [one for one in history.sealed if one.limit <= self.frontier]
        active = SealedSegment(history.active_id, history.active_start, history.next, 0)
        if sealed != history.sealed:  # Another handle has sealed a segment since the refresh.
            active = next(one for one in history.sealed if one not in sealed)
        has_active = bool(history.records(active.start, self.frontier))
        return [*map(self._segment, sealed), *([self._segment(active, True)] if has_active else [])]

    def _segment(self, one: SealedSegment, is_active: bool = False) -> Segment:
        limit = min(one.limit, self.history.compacted)
        found = self.history.records(one.start, limit)
        return Segment(
            id=one.id,
            start=one.start,
            limit=None if is_active else one.limit,
            sealed_us=None if is_active else one.sealed_us,
            first_us=min((record.timestamp_us for record in found), default=None),
            last_us=max((record.timestamp_us for record in found), default=None),
            records=len(found),
            bytes=sum(record.size for record in found),
            runs=int(bool(found)),
            is_compacted=not is_active and one.limit <= self.history.compacted,
        )

    async def sequence_at(self, when: int | datetime) -> int:
        self._check_open()
        if isinstance(when, bool) or not isinstance(when, int | datetime):
            raise UsageError("a time is microseconds since 1970 (int), or a datetime", when=when)
        when_us = micros_of(when) if isinstance(when, datetime) else when
        for record in self.history.records(0, self.frontier):
            if record.timestamp_us >= when_us:
                return record.sequence
        return self.frontier

    async def next_sequence(self) -> int:
        self._check_open()
        return self.frontier

    async def refresh(self) -> int:
        self._check_open()
        self._oldest, self._next = self.history.oldest, self.history.durable
        return self.frontier

    async def checkpoints(self) -> list[CheckpointInfo]:
        self._check_open()
        return [one for _, one in sorted(self.history.checkpoints.items())]

    async def describe(self) -> KeyedInfo:
        self._check_open()
        history = self.history
        runs = history.records(0, min(history.compacted, self.frontier))
        return KeyedInfo(
            name=self.name,
            oldest=self.oldest,
            next_sequence=self.frontier,
            compacted=min(history.compacted, self.frontier),
            segments=len(self._segments()),
            runs=sum(one.runs for one in self._segments()),
            bytes=sum(one.size for one in runs),
            records_in_runs=len(runs),
            loose_fragments=int(history.compacted < self.frontier),
            sealing=history.sealing,
            retention=history.retention,
            checkpoints=tuple(await self.checkpoints()),
        )

    async def close(self) -> None:
        self.is_closed = True
        self.history.wake()

    def _check_open(self) -> None:
        if self.is_closed:
            raise HandleError("the handle is closed: open the log again", log=self.name)


class MemoryKeyed(ModelReads, KeyedWrites):
    """A handle that also writes: only the handle opened last may append."""

    def __init__(
        self,
        name: str = "log",
        history: KeyedHistory | None = None,
        clock: Clock | None = None,
        visibility: str = MEMORY,
    ) -> None:
        super().__init__(name, history or KeyedHistory(), clock)
        self.visibility = visibility
        self.weather = Weather()
        self.history.epoch += 1
        self._epoch = self.history.epoch

    @property
    def frontier(self) -> int:
        history = self.history
        return history.durable if self.visibility == DURABLE else history.next

    @property
    def is_fenced(self) -> bool:
        return self._epoch != self.history.epoch

    async def append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        found = _checked(records)
        until_us = None if timeout_us is None else self.clock.monotonic_us() + timeout_us
        while self.weather.is_full:
            if until_us is not None and self.clock.monotonic_us() >= until_us:
                raise _full(found)
            await asyncio.sleep(0.001)
        return self._append(found, durable, timestamp_us)

    async def append_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        rows = records.select(["key", "value"]).to_pylist()
        pairs = [(row["key"], row["value"]) for row in rows]
        return await self.append(
            pairs, durable=durable, timestamp_us=timestamp_us, timeout_us=timeout_us
        )

    async def try_append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
    ) -> int:
        found = _checked(records)
        if self.weather.is_full:
            raise _full(records)
        return self._append(found, durable, timestamp_us)

    def _append(
        self, records: Sequence[tuple[bytes, bytes]], durable: bool, timestamp_us: int | None
    ) -> int:
        self._check_writer()
        error, lands = self.weather.errors.pop(0) if self.weather.errors else (None, True)
        first = self.history.next
        if lands:
            now_us = wall_us(self.clock)
            self.history.seal_if_due(now_us)
            self.history.place(records, now_us if timestamp_us is None else timestamp_us)
            if durable:
                self.history.make_durable()
        if error is not None:
            raise error
        return first

    async def flush(self) -> int:
        self._check_writer()
        self.history.make_durable()
        return self.history.durable

    async def durable_sequence(self) -> int:
        self._check_open()
        return self.history.durable

    def on_durable(self, told: Callable[[int], None]) -> Callable[[], None]:
        def tell() -> None:
            told(self.history.durable)

        self.history.told.append(tell)
        return lambda: self.history.told.remove(tell) if tell in self.history.told else None

    async def seal(self) -> Segment | None:
        self._check_writer()
        self.history.make_durable()
        made = self.history.seal(wall_us(self.clock))
        return None if made is None else self._segment(made)

    async def compact(self, *, full: bool = False) -> int:
        self._check_open()
        return self.history.compact()

    async def retire(self, retention: Retention | None = None) -> int:
        self._check_open()
        return self.history.retire(retention or self.history.retention, wall_us(self.clock))

    async def configure(self, sealing: Sealing) -> None:
        self._check_open()
        self.history.sealing = sealing

    async def retain(self, retention: Retention) -> None:
        self._check_open()
        self.history.retention = retention

    async def collect(self) -> int:
        self._check_open()
        return 0

    async def create_checkpoint(self, name: str) -> CheckpointInfo:
        self._check_open()
        return self.history.create_checkpoint(name, wall_us(self.clock))

    async def drop_checkpoint(self, name: str) -> None:
        self._check_open()
        self.history.drop_checkpoint(name)

    def _check_writer(self) -> None:
        self._check_open()
        if self.is_fenced:
            raise Fenced("another process took over: open the log again", log=self.name)


class MemoryLake:
    """Keyed logs by name, with a location's methods for them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.histories: dict[str, KeyedHistory] = {}

    @property
    def keyed(self) -> MemoryLake:
        return self

    async def create(
        self, name: str, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> MemoryKeyed:
        self._check_free(name)
        self.histories[name] = KeyedHistory(sealing or Sealing(), retention or Retention())
        return MemoryKeyed(name, self.histories[name], self.clock)

    async def open(
        self, name: str, *, visibility: str = MEMORY, batching: object = None
    ) -> MemoryKeyed:
        if visibility not in (MEMORY, DURABLE):
            raise UsageError("visibility must be 'memory' or 'durable'", given=visibility)
        return MemoryKeyed(name, self._history(name), self.clock, visibility)

    async def reader(
        self, name: str, *, refresh_us: int = 1_000_000, checkpoint: str | None = None
    ) -> ModelReads:
        found = ModelReads(name, self._history(name), self.clock)
        return found if checkpoint is None else found.at_checkpoint(checkpoint)

    async def list(self) -> builtins.list[str]:
        return sorted(self.histories)

    async def fork(self, source: str, name: str) -> MemoryKeyed:
        history = self._history(source)
        self._check_free(name)
        self.histories[name] = history.fork()
        return MemoryKeyed(name, self.histories[name], self.clock)

    async def drop(self, name: str) -> None:
        self._history(name)
        del self.histories[name]

    def _history(self, name: str) -> KeyedHistory:
        if name not in self.histories:
            raise NoSuchLog(f"the keyed log {name!r} does not exist: list the keyed logs")
        return self.histories[name]

    def _check_free(self, name: str) -> None:
        if name in self.histories:
            raise NameTaken(f"there is a keyed log {name!r} already")


def _checked(records: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    given: object = records
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or not given:
        raise UsageError("append takes a list of (key, value), and at least one")
    for pair in given:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or type(pair[1]) is not bytes:
            raise UsageError("append takes a list of (key, value), both bytes: encode texts first")
        check_key(pair[0])
        if len(pair[1]) > VALUE_BYTES_MAX:
            raise UsageError("a value has at most 64 MiB", size_bytes=len(pair[1]))
    return [(key, value) for key, value in records]


def _full(records: Sequence[tuple[bytes, bytes]]) -> LogFull:
    return LogFull("too much waits to be written: append it again later", records=records)


def _is_listed(keys: Keys, after: bytes | None, key: bytes) -> bool:
    return keys.contains(key) and (after is None or key > after)


def table_of(records: Sequence[KeyedRecord]) -> list[tuple[bytes, int, int, bytes]]:
    """Return records as plain tuples, for comparisons."""
    return [(one.key, one.sequence, one.timestamp_us, one.value) for one in records]
