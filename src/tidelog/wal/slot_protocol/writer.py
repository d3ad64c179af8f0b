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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.core.clock import Clock, backoff_us, wall_us
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    Fenced,
    InvariantError,
    LocationError,
    LogSealed,
    Outcome,
    TidelogError,
    UsageError,
)
from tidelog.store.conditional import DEFAULT_RESEND, Resend, create_or_read
from tidelog.store.port import Store
from tidelog.wal.append.batch_writer import BatchWriter
from tidelog.wal.append.work import PlacedRecords, Work
from tidelog.wal.format.arrays import binary_array
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Epoch
from tidelog.wal.format.manifest import chain_of
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.format.streams import Control, check_control, encode_control
from tidelog.wal.read.epoch_history import with_epochs_of
from tidelog.wal.read.head import load_head
from tidelog.wal.read.limits import check_time_us
from tidelog.wal.slot_protocol.chain import has_slot, step
from tidelog.wal.slot_protocol.chain_reader import end_of_epoch
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.fencing import Fencer, over
from tidelog.wal.slot_protocol.manifest_maintenance import ManifestMaintenance
from tidelog.wal.slot_protocol.pipeline import Pipeline, SentBatch, Wait, encode_batch
from tidelog.wal.slot_protocol.shape import Shape

READS_MAX: Final = 3  # Reads of a slot that holds another object than this writer's.
RESOLVE_MAX: Final = 16  # Tries to read the end of an epoch.
INLINE_BYTES: Final = 64 * 1024  # A smaller batch is encoded before a thread would begin to.


@dataclass(slots=True, kw_only=True)
class SlotWriter(BatchWriter):
    """An appender to one log. ``writer`` is a name for people; its objects carry it.

    ``resend`` limits how long a put is sent again before the writer reads back its outcome. A
    batch of more than ``inline_bytes`` is encoded in a thread.
    """

    store: Store
    clock: Clock
    writer: str
    shape: Shape = field(default_factory=Shape)
    resend: Resend = field(default_factory=lambda: DEFAULT_RESEND)
    inline_bytes: int = field(default_factory=lambda: INLINE_BYTES)
    _pipeline: Pipeline | None = None
    _maintenance: ManifestMaintenance = field(init=False)
    _named: set[str] = field(default_factory=set)
    _has_held: bool = False
    taken_from: str = ""  # The previous writer's name, unless that writer had closed.

    def __post_init__(self) -> None:
        BatchWriter.__post_init__(self)
        self.resend = replace(self.resend, heard=self._queue.hear)
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
        self._refuse_other_loop()
        work = self._queue.add(bodies, timestamp_us=timestamp_us, keys=key, wait=wait, placed=True)
        placing = work.placing
        assert placing is not None, "it is placed"
        return PlacedRecords(await self._answer(work, placing.ordered), work.done, placing)

    async def control(self, control: Control) -> int:
        """Append a control record; return its position once it is durable.

        Raises:
            NameTaken: it opens a stream that is open. NOT_APPLIED.
            NoSuchStream: it closes or describes a stream that is not open. NOT_APPLIED.
            UsageError: too many streams are open, or the id or the meta is invalid. NOT_APPLIED.
            Otherwise see `append`.
        """
        check_control(control)
        self._refuse_other_loop()
        work = self._queue.add(binary_array([encode_control(control)]), control=control)
        return await self._answer(work, work.done)

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
            queue=self._queue,
            tail=ended.tail,
            steps=self._maintenance.steps,
            behind_max=self._maintenance.behind_max,
        )

    async def _fill(self, pipeline: Pipeline) -> None:
        """Send batches until the epoch is over, or the writer is closed and all are settled."""
        if pipeline.is_idle:
            self._queue.durable.advance(pipeline.tail.position)
        async with asyncio.TaskGroup() as group:
            roll_ups = group.create_task(self._maintenance.run())
            while (turn := pipeline.next_batch(self.clock.monotonic_us())) is not None:
                if not isinstance(turn, Wait):
                    await self._send(pipeline, turn, group)
                elif turn.rest_us is None:
                    await self._queue.changed.wait()
                else:
                    await self.clock.sleep(turn.rest_us)
            roll_ups.cancel()

    async def _send(self, pipeline: Pipeline, batch: list[Work], group: asyncio.TaskGroup) -> None:
        """Encode a batch for the next slot, and start its put; an empty batch is no batch."""
        if not batch:
            return
        is_small = sum(work.size for work in batch) <= self.inline_bytes
        tail, now_us = pipeline.tail, wall_us(self.clock)
        encode = partial(encode_batch, batch, tail, now_us=now_us, writer=self.writer)
        try:
            link, data = encode() if is_small else await self.clock.offload(encode)
        except (InvariantError, UsageError) as error:
            self._queue.fail(batch, error)
            return
        if (sent := pipeline.launch(batch, tail, link, data)) is not None:
            group.create_task(self._put(pipeline, sent))

    async def _put(self, pipeline: Pipeline, sent: SentBatch) -> None:
        """Send a slot's batch until the slot's content is known, or the time to resend is over.

        Raises:
            CorruptionError: the slot holds neither this batch nor a fence.
        """
        try:
            found = await self._create(sent)
        except TidelogError as error:
            if error.outcome is Outcome.NOT_APPLIED:
                pipeline.note_refusal(sent, error)
            elif isinstance(error, CorruptionError):
                raise
            else:
                pipeline.note_doubt(error)
            return
        try:
            fence = None if found == sent.data else await self._fence_in(sent, found)
        except CorruptionError:
            raise
        except TidelogError as error:
            pipeline.note_doubt(error)
            return
        if fence is None:
            pipeline.note_stored(sent)
        else:
            pipeline.note_fence(sent, fence)

    async def _create(self, sent: SentBatch) -> bytes:
        return await create_or_read(
            self.store, sent.fragment.path, sent.data, clock=self.clock, resend=self.resend
        )

    async def _fence_in(self, sent: SentBatch, found: bytes) -> Epoch | Seal | None:
        """Return the fence in the slot of a batch; None if it is stray, so the batch was stored.

        A fence is stray if the batch was stored and collected, and a late opener then found the
        slot empty.

        Raises:
            CorruptionError: the slot does not hold a fence.
        """
        path, before = sent.fragment.path, sent.before
        for left in reversed(range(READS_MAX)):
            try:
                met = step(before, decode_link(found, path=path), len(found))[1]
                break
            except CorruptionError:  # The answer may have been cut short.
                if not left:
                    raise
            found = await self._create(sent)
        if isinstance(met, Fragment):
            raise CorruptionError(
                "another process wrote into this writer's epoch: scrub the log", path=path
            )
        manifest = (await load_head(self.store)).manifest
        chain = await with_epochs_of(self.store, chain_of(manifest), before.slot)
        is_stray = has_slot(replace(manifest, chain=chain), before.epoch, before.slot)
        return None if is_stray else met

    def _stop(self, pipeline: Pipeline, reason: TidelogError) -> None:
        """Stop for good: the unsettled batches of the epoch are past the fence, so void."""
        pipeline.give_back()
        self._queue.abandon(reason)

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
                end, after = await self._end_of(pipeline.epoch)
            except (LocationError, ContentionError, CorruptionError) as error:
                self._queue.trouble = error
                continue
            pipeline.settle(below=end)
            if isinstance(after, Pipeline):
                pipeline.give_back()
                return after
            self._stop(pipeline, after)
            return None
        self._queue.next_position = None
        pipeline.give_up()
        return None

    async def _end_of(self, epoch: Epoch) -> tuple[int, Pipeline | TidelogError]:
        """Return the slot where an epoch ended, and this writer's next epoch or an error."""
        after: Pipeline | TidelogError
        end = await end_of_epoch(self.store, epoch, clock=self.clock)
        if end is None or (isinstance(end.after, Epoch) and end.after.name in self._named):
            # An earlier try of this writer may have stored the fence without getting its answer.
            try:
                after = await self._open()
            except (Fenced, LogSealed) as error:
                after = error
            end = end or await end_of_epoch(self.store, epoch, clock=self.clock)
        else:
            after = over(end.after)
        if end is None:
            raise InvariantError(
                "this writer's epoch has ended, but its end was not found", epoch=epoch.name
            )
        return end.slot, after
