"""A writable keyed log: appends go to its wal, and reads see them in memory immediately.

One process writes at a time; a newer writer fences the older one. Any process may read, compact and
collect concurrently.
Source: rfc-0001, "Write API"; design page 5, "Calls".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidelog.core.arguments import check_kind, check_whole
from tidelog.core.clock import backoff_us, wall_us
from tidelog.core.ids import check_name
from tidelog.errors import BusyError, ContentionError, LogFull, TidelogError, UsageError
from tidelog.keyed.maintenance.collecting import AFTER_US, KeyedCollector
from tidelog.keyed.maintenance.compactor import HERE, Compactor, RunMerger
from tidelog.keyed.maintenance.plan import LOOSE_MAX, retired_by
from tidelog.keyed.maintenance.scrub import KeyedScrubReport, scrub_keyed
from tidelog.keyed.port import KeyedWrites
from tidelog.keyed.read.by_spark import spark_keyed_room
from tidelog.keyed.read.sources import LoosePiece
from tidelog.keyed.read.state_handle import KeyedView
from tidelog.keyed.reader import REFRESH_US, KeyedReader
from tidelog.keyed.states.describing import checkpoint_info
from tidelog.keyed.states.state import KeyedDiff, KeyedState
from tidelog.keyed.states.transition import (
    decide_checkpoint,
    decide_configure,
    decide_drop_checkpoint,
    decide_retire,
    decide_seal,
)
from tidelog.keyed.values import (
    DURABLE,
    MEMORY,
    CheckpointInfo,
    Retention,
    Sealing,
    Segment,
    check_settings,
    records_table,
)
from tidelog.keyed.write.arrow import batches_of, check_lengths
from tidelog.keyed.write.pending import OrderedRecords, PendingAppends
from tidelog.machine.language import Decision
from tidelog.store.wrappers.read_only import refuses_writes
from tidelog.wal.slot_log import SlotLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES: Final = 100
OPENING_SLOTS: Final = 2  # A fence, and the first batch.


@refuses_writes("state_handle.store")
@dataclass(kw_only=True, repr=False, eq=False)
class KeyedLog(KeyedReader, KeyedWrites):
    """A handle for writing and reading.

    With ``visibility`` ``memory``, reads show ordered records; with ``durable``, only durable ones.
    While it writes, it compacts in the background as needed, unless ``maintenance`` is False.

    Units: the handle knows its own appends. After ``quiet_us`` without an acknowledged append it
        reads the store again, because another process may have taken over the log.
    """

    wal: SlotLog
    visibility: str = MEMORY
    maintenance: bool = True
    refresh_us: int = 0
    quiet_us: int = REFRESH_US
    merger: RunMerger = field(default_factory=lambda: HERE)
    _pending: PendingAppends = field(init=False)
    _wrote: bool = False
    _heard_us: int = 0  # When the last append was acknowledged: until then no other process wrote.
    _loose: int = 0  # Appends since the last maintenance; each made at most one fragment.
    _first_slot: int | None = None  # The slot of the wal at which this handle began to write.
    _maintenance_task: asyncio.Task[int] | None = None

    def __post_init__(self) -> None:
        KeyedReader.__post_init__(self)
        if self.visibility not in (MEMORY, DURABLE):
            raise UsageError(f"visibility must be {MEMORY!r} or {DURABLE!r}", found=self.visibility)
        self._pending = PendingAppends(settled=self._settled, failed=self._failed)

    async def append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        keys, values = records_table(records)
        try:
            ordered = await self._place(keys, values, timestamp_us, timeout_us)
        except BusyError as error:
            raise LogFull(error.sentence, records=records, outcome=error.outcome) from error
        return (await self._pending.positions([ordered]))[0] if durable else ordered.placed.position

    async def append_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        batches = batches_of(records)
        first: int | None = None
        placed: list[OrderedRecords] = []
        for keys, values in batches:
            try:
                ordered = await self._place(keys, values, timestamp_us, timeout_us)
            except BusyError as error:
                if durable:
                    # The error reports these rows as taken, so they must be durable.
                    await self._pending.positions(placed)
                rows = sum(len(done.values) for done in placed)
                raise LogFull(
                    "the queue of appends is full: append the rest of the table later",
                    rows_taken=rows,
                ) from error
            first = ordered.placed.position if first is None else first
            placed.append(ordered)
        assert first is not None
        if durable:
            first = (await self._pending.positions(placed))[0]
        return first

    async def try_append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
    ) -> int:
        return await self.append(records, durable=durable, timestamp_us=timestamp_us, timeout_us=0)

    async def flush(self) -> int:
        await self._pending.flush()
        return await self.durable_sequence()

    async def durable_sequence(self) -> int:
        if not self._wrote:
            return (await self._look_now(False)).next
        return max(self.wal.durable_position(), self.state_handle.tail.next)

    def on_durable(self, told: Callable[[int], None]) -> Callable[[], None]:
        return self.wal.on_durable(told)

    async def seal(self) -> Segment | None:
        self._check_open()
        state_handle = self.state_handle
        for attempt in range(TRIES):
            await self._pending.flush()
            await state_handle.refresh()
            limit, now_us = state_handle.tail.next, wall_us(state_handle.clock)
            if limit <= state_handle.state.active_start:
                return None
            sealed = await state_handle.machine.commit(
                partial(decide_seal, limit=limit, at_us=now_us)
            )
            if sealed is not None:
                return sealed
            await state_handle.clock.sleep(backoff_us(attempt, state_handle.clock))
        raise ContentionError(
            f"gave up after {TRIES} tries: other processes kept sealing or compacting first; try "
            "again"
        )

    async def compact(self, *, full: bool = False, spark: SparkSession | None = None) -> int:
        """Compact loose fragments into runs; see `KeyedWrites`.

        With a Spark session, its tasks do the large merges.
        """
        self._check_open()
        merger = self.merger
        if spark is not None:
            merger = spark_keyed_room("merger").SparkRunMerger(spark)
        return await Compactor(state_handle=self.state_handle, merger=merger).compact(full=full)

    async def retire(self, retention: Retention | None = None) -> int:
        check_settings(None, retention)
        self._check_open()
        await self.state_handle.refresh()
        kept = retention or self.state_handle.state.retention
        if not kept.is_set:
            return 0
        if any(
            seal.limit > self.state_handle.state.compacted for seal in self.state_handle.state.seals
        ):
            await self.compact()
        now_us = wall_us(self.state_handle.clock)

        def decide(state: KeyedState) -> Decision[KeyedDiff, int]:
            # Use the settings of that moment: another process may just have extended the retention.
            by = retention or state.retention
            return decide_retire(state, retired_by(state, by, now_us=now_us))

        return await self.state_handle.machine.commit(decide)

    async def configure(self, sealing: Sealing) -> None:
        check_kind(sealing, Sealing, "sealing must be a tidelog.Sealing")
        self._check_open()
        await self.state_handle.machine.commit(
            lambda state: decide_configure(state, sealing=sealing, retention=None)
        )

    async def retain(self, retention: Retention) -> None:
        check_kind(retention, Retention, "retention must be a tidelog.Retention")
        self._check_open()
        await self.state_handle.machine.commit(
            lambda state: decide_configure(state, sealing=None, retention=retention)
        )

    async def collect(self, *, after_us: int = AFTER_US) -> int:
        """Delete objects that no state has named for ``after_us``; see `KeyedWrites`."""
        check_whole(after_us, "after_us")
        self._check_open()
        collector = KeyedCollector(
            state_handle=self.state_handle, wal=self.wal, writer=self.wal.writer, after_us=after_us
        )
        return await collector.collect()

    async def scrub(self) -> KeyedScrubReport:
        """Read and check all stored data, including checkpoints; see `KeyedScrubReport`.

        Raises:
            NoSuchLog: the log is gone. LocationError: the store failed.
        """
        self._check_open()
        return await scrub_keyed(self.state_handle, self.wal)

    async def create_checkpoint(self, name: str) -> CheckpointInfo:
        check_name(name, of="name of a checkpoint")
        self._check_open()
        state_handle = self.state_handle
        await self._pending.flush()
        await state_handle.refresh()
        limit = state_handle.tail.next
        for attempt in range(TRIES):
            now_us = wall_us(state_handle.clock)
            made = await state_handle.machine.commit(
                partial(decide_checkpoint, name=name, next_sequence=limit, at_us=now_us)
            )
            if made is not None:
                return checkpoint_info(name, made)
            await self.compact(full=True)
            await state_handle.clock.sleep(backoff_us(attempt, state_handle.clock))
        raise ContentionError(
            f"gave up after {TRIES} tries: other processes kept compacting first; try again"
        )

    async def drop_checkpoint(self, name: str) -> None:
        self._check_open()
        await self.state_handle.machine.commit(lambda state: decide_drop_checkpoint(state, name))

    async def close(self) -> None:
        slots = self.wal.slots()
        try:
            await self.wal.close()
            if self._is_due(slots):
                await self._maintain()
            await self._pending.end()
        finally:
            if self._maintenance_task is not None:
                await asyncio.wait({self._maintenance_task})
            await KeyedReader.close(self)

    async def _place(
        self,
        keys: pa.BinaryArray,
        values: pa.BinaryArray,
        timestamp_us: int | None,
        timeout_us: int | None,
    ) -> OrderedRecords:
        """Place records in the wal's order; wait at most ``timeout_us`` for room.

        Raises:
            BusyError: there was no room in time. Otherwise see `KeyedWrites.append`.
        """
        _check(keys)
        if timeout_us is not None:
            check_whole(timeout_us, "timeout_us")
        clock = self.state_handle.clock
        time_us = wall_us(clock) if timestamp_us is None else timestamp_us
        until_us = None if timeout_us is None else clock.monotonic_us() + timeout_us
        attempt = 0
        while True:
            try:
                placed = await self.wal.place(
                    values, key=keys, timestamp_us=time_us, wait=until_us is None
                )
                break
            except BusyError:
                if until_us is None:
                    raise
                left_us = until_us - clock.monotonic_us()
                if left_us <= 0:
                    raise
                await clock.sleep(min(left_us, backoff_us(attempt, clock)))
                attempt += 1
            except TidelogError as error:
                self._failed(error)
                raise
        ordered = OrderedRecords(placed, keys, values, time_us)
        if not self._wrote:
            # Other processes may have appended before this first append.
            self.state_handle.tail.lag()
        self._wrote = True
        self._pending.add(ordered)
        return ordered

    def _settled(self, piece: LoosePiece) -> None:
        """Take a batch of records that has become durable."""
        tail = self.state_handle.tail
        self._heard_us = self.state_handle.clock.monotonic_us()
        tail.add(piece)
        self._feed.push(piece)
        self._loose += 1
        if self._first_slot is None:
            self._first_slot = max(0, self.wal.slots() - OPENING_SLOTS)
        if self.maintenance and self._loose >= LOOSE_MAX and self._maintenance_task is None:
            self._loose = 0
            self._maintenance_task = asyncio.create_task(self._maintain(), name="keyed maintenance")

    def _is_due(self, slots: int) -> bool:
        """Return True if a closing writer must check whether a compaction is due.

        Many processes may each append little and close. To share the work, a closing writer checks
        if its slots include a multiple of `LOOSE_MAX`.
        """
        if not self.maintenance or self._maintenance_task is not None or self._first_slot is None:
            return False
        return slots // LOOSE_MAX > self._first_slot // LOOSE_MAX

    def _failed(self, error: BaseException) -> None:
        """Stop trusting memory: another process may write, or a lost append may be stored."""
        self._wrote = False
        self.state_handle.tail.lag()

    async def _maintain(self) -> int:
        """Compact and retire as due. An error is ignored, because a later call meets it again."""
        try:
            written = await self.compact()
            await self.retire()
            return written
        except TidelogError:
            return 0
        finally:
            self._maintenance_task = None

    async def _look(self, fresh: bool) -> KeyedView:
        await self._refresh(fresh)
        if self.visibility == DURABLE:
            return self.state_handle.view()
        return self.state_handle.view(self._pending.pieces())

    async def _stated(self) -> KeyedView:
        return await self._look(True)

    async def _look_now(self, fresh: bool) -> KeyedView:
        await self._refresh(fresh)
        return self.state_handle.view()

    async def _refresh(self, fresh: bool) -> None:
        self._check_open()
        if fresh or not self._wrote or self.state_handle.tail.is_behind or self._is_quiet:
            await KeyedReader._refresh(self, fresh)

    @property
    def _is_quiet(self) -> bool:
        """True if nothing was heard of the log for so long that another process may write."""
        since_us = self.state_handle.clock.monotonic_us() - self.quiet_us
        known_us = max(self._heard_us, self.state_handle.refreshed_us or 0)
        return known_us <= since_us


def _check(keys: pa.BinaryArray) -> None:
    if not len(keys):
        raise UsageError("an append must have at least one record")
    check_lengths(keys)
