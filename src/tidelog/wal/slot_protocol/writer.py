"""The writer of a slot log: one round trip per append, several in flight, one writer at a time.

The first append opens the log and so ends the epoch of the previous writer. A writer whose epoch
was ended by another process stops for good, and never ends that process's epoch. A writer that gets
no answer to a put takes the log over from itself. The fence that ends its old epoch decides which
slots are in the log, so no outcome stays unknown while the store can be reached. The writer sends a
batch again in the new epoch unless the store refused it.
Source: wal3-draft, "Concurrent Writes" and "Fencing"; design page 3, "Slot commit".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    Fenced,
    InvariantError,
    LocationError,
    LogSealed,
    TidelogError,
    UsageError,
)
from tidelog.store.conditional import DEFAULT_RESEND, Resend
from tidelog.store.port import Store
from tidelog.wal.append.append_errors import out_of_reach
from tidelog.wal.append.batch_writer import BatchWriter
from tidelog.wal.append.bodies import array_of
from tidelog.wal.append.work import PlacedRecords, Work
from tidelog.wal.format.arrays import binary_array
from tidelog.wal.format.epoch import Epoch
from tidelog.wal.format.streams import Control, check_control, check_stream, encode_control
from tidelog.wal.read.limits import check_time_us
from tidelog.wal.slot_protocol.chain_reader import end_of_epoch
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.fencing import Fencer, over
from tidelog.wal.slot_protocol.manifest_maintenance import ManifestMaintenance
from tidelog.wal.slot_protocol.pipeline import Pipeline, SentBatch
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.window import admit

RESOLVE_MAX: Final = 16  # Tries to read the end of an epoch.
SHARES_MAX: Final = 2  # Batches into which a long queue is split, if that many puts may be sent.


@dataclass(slots=True, kw_only=True)
class SlotWriter(BatchWriter):
    """An appender to one log. ``writer`` is a name for people; its objects carry it.

    ``resend`` limits how long a put is sent again before the writer reads back its outcome.
    """

    store: Store
    clock: Clock
    writer: str
    shape: Shape = field(default_factory=Shape)
    resend: Resend = field(default_factory=lambda: DEFAULT_RESEND)
    _pipeline: Pipeline | None = None
    _maintenance: ManifestMaintenance = field(init=False)
    _named: set[str] = field(default_factory=set)
    _has_held: bool = False
    taken_from: str = ""  # The previous writer's name, unless that writer had closed.

    def __post_init__(self) -> None:
        BatchWriter.__post_init__(self)
        self._queue.next_position = self._next_position
        checkpointer = Checkpointer(
            store=self.store, clock=self.clock, writer=self.writer, rollover=self.shape.rollover
        )
        self._maintenance = ManifestMaintenance(
            checkpointer=checkpointer,
            queue=self._queue,
            clock=self.clock,
            slots=self.shape.rollup_slots,
            interval_us=self.shape.rollup_interval_us,
        )

    @property
    def slots(self) -> int:
        """Return how many slots the log has had, as far as this writer knows; 0 until it opens."""
        return 0 if self._pipeline is None else self._pipeline.tail.slot

    def _next_position(self) -> int | None:
        return None if self._pipeline is None else self._pipeline.tail.position

    async def append(
        self,
        records: Sequence[bytes],
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append records; return the position of the first once all are durable.

        The records of one call are contiguous and keep their order. ``timestamp_us`` is their time;
        the default is the time of the append.

        Raises:
            UsageError: ``records`` is empty or not a list of bytes, one is over 64 MiB or all are
            over 1 GiB, the time is negative, or the stream or the key is invalid. NOT_APPLIED.
            NoSuchStream: the stream is not open. NOT_APPLIED.
            BusyError: ``wait`` is False and the queue is full. NOT_APPLIED.
            HandleError: the writer is closed. NOT_APPLIED.
            Fenced: another writer took over. NOT_APPLIED.
            LogSealed: the log is sealed. NOT_APPLIED.
            OutcomeUnknown: the records were sent, and the store cannot be reached any longer; see
            `tidelog.wal.slot_protocol.chain_reader`.
            LocationError: the store refused the records, the log cannot be opened, or nothing was
            acknowledged for `Batching.patience_us`. NOT_APPLIED.
        """
        return await self.append_arrow(
            array_of(records), stream=stream, key=key, timestamp_us=timestamp_us, wait=wait
        )

    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        key: bytes | pa.BinaryArray | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array without nulls; see `append`."""
        if timestamp_us is not None:
            check_time_us(timestamp_us)
        if stream is not None:
            check_stream(stream)
        return await self._submit(
            bodies, timestamp_us=timestamp_us, stream=stream, keys=key, wait=wait
        )

    async def place(
        self,
        bodies: pa.BinaryArray,
        *,
        key: bytes | pa.BinaryArray | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> PlacedRecords:
        """Append the values of an array, and return once the queue has them; see `PlacedRecords`.

        The first call waits until the log is open.

        Raises:
            As `append`, if the append fails before the queue accepts it.
        """
        if timestamp_us is not None:
            check_time_us(timestamp_us)
        return await self._place(bodies, timestamp_us=timestamp_us, keys=key, wait=wait)

    async def control(self, control: Control) -> int:
        """Append a control record; return its position once it is durable.

        Raises:
            NameTaken: it opens a stream that is open. NOT_APPLIED.
            NoSuchStream: it closes or describes a stream that is not open. NOT_APPLIED.
            UsageError: too many streams are open, or the id or the meta is invalid. NOT_APPLIED.
            Otherwise see `append`.
        """
        check_control(control)
        return await self._submit(binary_array([encode_control(control)]), control=control)

    async def _serve(self) -> None:
        """Write epoch after epoch until the writer is closed and its queue empty; then roll up."""
        while await self._work_waits():
            pipeline = self._pipeline = self._pipeline or await self._opened()
            if pipeline is None:
                continue
            await self._fill(pipeline)
            if pipeline.doubt is not None:
                self._pipeline = await self._resolve(pipeline)
            elif pipeline.fence is not None:
                self._stop(pipeline, over(pipeline.fence))
        last: Pipeline | None = self._pipeline
        is_clean = last is not None and last.is_idle
        await self._maintenance.roll_up(
            closing=last.tail if last is not None and is_clean else None
        )

    async def _opened(self) -> Pipeline | None:
        """Open the log; if that fails, fail the waiting appends and return None."""
        try:
            return await self._open()
        except (Fenced, LogSealed) as error:
            self._queue.abandon(error)
        except TidelogError as error:
            self._queue.trouble = error
            self._queue.refuse_waiting(error)
        return None

    async def _open(self) -> Pipeline:
        """Begin an epoch: the first time over any other, later only over this writer's own epochs.

        Raises:
            Fenced: another writer has taken over.
            Otherwise see `Fencer.open`.
        """
        fencer = Fencer(
            store=self.store,
            clock=self.clock,
            writer=self.writer,
            named=self._named,
            resend=replace(DEFAULT_RESEND, heard=self._queue.hear),
        )
        only_over = frozenset(self._named) if self._has_held else None
        ended = await fencer.open(
            lanes=self.shape.lanes, alpha=self.shape.alpha, only_over=only_over
        )
        self.taken_from = self.taken_from if self._has_held else ended.taken_from
        self._has_held = True
        self._maintenance.begin(ended.head, list(ended.steps))
        return Pipeline(
            store=self.store,
            clock=self.clock,
            writer=self.writer,
            resend=replace(self.resend, heard=self._queue.hear),
            tail=ended.tail,
        )

    async def _fill(self, pipeline: Pipeline) -> None:
        """Send batches until the epoch is over, or the writer is closed and all are settled."""
        if pipeline.is_idle:
            self._queue.durable.advance(pipeline.tail.position)
        async with asyncio.TaskGroup() as group:
            roll_ups = group.create_task(self._maintenance.run())
            while await self._is_to_send(pipeline):
                if not await self._has_token(self.clock):
                    continue
                begun_us = self.clock.monotonic_us()
                if (slot := await self._placed(pipeline)) is not None:
                    group.create_task(self._put(pipeline, slot))
                    await self._pace(begun_us, self.clock)
            roll_ups.cancel()

    async def _is_to_send(self, pipeline: Pipeline) -> bool:
        """Wait until there is work and room for it; return False if the epoch is over instead."""
        queue, behind_max = self._queue, self._maintenance.behind_max

        def has_end() -> bool:
            return pipeline.is_over or (queue.is_closing and not queue and not pipeline.under_way)

        def has_work() -> bool:
            # A closing writer has only a little work left, so it does not wait for the manifest.
            is_near = self._maintenance.behind + pipeline.under_way < behind_max or queue.is_closing
            return len(queue) > 0 and pipeline.has_room and is_near

        await queue.changed.wait_for(lambda: has_end() or has_work())
        return not has_end()

    async def _placed(self, pipeline: Pipeline) -> int | None:
        """Give the next batch a slot; return None if the batch failed or must be admitted again."""
        slot, batch = None, self._admitted(pipeline)
        try:
            slot = await pipeline.place(batch) if batch else None
            if slot is None:
                self._queue.give_back(batch)
        except (InvariantError, UsageError) as error:
            self._queue.fail(batch, error)
        return slot

    def _admitted(self, pipeline: Pipeline) -> list[Work]:
        """Take the next batch; fail those of its appends that do not fit the open streams."""
        admitted, refused = admit(
            pipeline.tail.streams, self._queue.take(shares=min(self.shape.alpha, SHARES_MAX))
        )
        for work, error in refused:
            self._queue.fail([work], error)
        return admitted

    async def _put(self, pipeline: Pipeline, slot: int) -> None:
        await pipeline.put(slot)
        for sent, error in list(pipeline.refused()):
            self._queue.answer(sent.batch, error)
        await self._settle(pipeline)

    async def _settle(self, pipeline: Pipeline, *, below: int | None = None) -> None:
        for sent in list(pipeline.settled(below=below)):
            if below is None:
                self._maintenance.add(sent.fragment)
            self._queue.settle(sent.batch, sent.fragment.start)
        self._queue.changed.notify()

    def _stop(self, pipeline: Pipeline, reason: TidelogError) -> None:
        """Stop for good: the unsettled batches of the epoch are past the fence, so void."""
        self._give_back(pipeline.rest())
        self._queue.abandon(reason)

    def _give_back(self, void: Sequence[SentBatch]) -> None:
        for sent in reversed(void):
            self._queue.give_back(sent.batch)

    async def _resolve(self, pipeline: Pipeline) -> Pipeline | None:
        """Learn which slots are in the log from the fence that ends the epoch, put here if needed.

        The batches that are not in the log are sent again in the next epoch, which this returns. If
        another writer ended the epoch, fail them and return None.
        """
        begun_us, patience_us = self.clock.monotonic_us(), self.batching.patience_us
        for attempt in range(RESOLVE_MAX if pipeline.under_way else 0):
            if attempt:
                await self.clock.sleep(backoff_us(attempt, self.clock))
                if self.clock.monotonic_us() - begun_us > patience_us:
                    break
            try:
                resolved = await self._end_of(pipeline)
            except (LocationError, ContentionError, CorruptionError) as error:
                self._queue.trouble = error
                continue
            await self._settle(pipeline, below=resolved.end)
            if isinstance(resolved.after, Pipeline):
                self._give_back(pipeline.rest())
                return resolved.after
            self._stop(pipeline, resolved.after)
            return None
        self._give_up(pipeline)
        return None

    async def _end_of(self, pipeline: Pipeline) -> _Resolved:
        """Return the end of an epoch, and this writer's next epoch or an error."""
        after: Pipeline | TidelogError
        end = await end_of_epoch(self.store, pipeline.epoch, clock=self.clock)
        if end is None or (isinstance(end.after, Epoch) and end.after.name in self._named):
            # An earlier try of this writer may have stored the fence without getting its answer.
            try:
                after = await self._open()
            except (Fenced, LogSealed) as error:
                after = error
            end = end or await end_of_epoch(self.store, pipeline.epoch, clock=self.clock)
        else:
            after = over(end.after)
        if end is None:
            raise InvariantError(
                "this writer's epoch has ended, but its end was not found",
                epoch=pipeline.epoch.name,
            )
        return _Resolved(end.slot, after)

    def _give_up(self, pipeline: Pipeline) -> None:
        """Report the outcome of sent batches as unknown; put void batches back into the queue."""
        rest = pipeline.rest()
        self._give_back([sent for sent in rest if pipeline.is_void(sent.fragment.seq_no)])
        for sent in rest:
            if not pipeline.is_void(sent.fragment.seq_no):
                reason = self._queue.trouble or pipeline.doubt
                self._queue.doubt(sent.batch, out_of_reach(sent.fragment.path, reason))


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The slot where an epoch ended, and this writer's next epoch or an error."""

    end: int
    after: Pipeline | TidelogError
