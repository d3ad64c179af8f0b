"""Writing a slot log: one round trip an append, several under way, one writer at a time.

The first append opens the log, which ends the turn of whoever wrote before. A writer whose turn was
ended by another is over. One that cannot learn what became of a put takes the log over from itself:
the fence that ends the old epoch says which slots are in the log, so nothing stays unknown while
the store can be reached.
Source: wal3-draft, "Concurrent Writes" and "Fencing"; design page 3, "Slot commit".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidelog.clock import Clock, backoff_us
from tidelog.errors import (
    ContentionError,
    Fenced,
    InvariantError,
    LocationError,
    LogSealed,
    OutcomeUnknown,
    TidelogError,
    UsageError,
)
from tidelog.store.conditional import DEFAULT_RESEND, Resend
from tidelog.store.port import Store
from tidelog.wal.append.batch_writer import BatchWriter
from tidelog.wal.append.queue import Work
from tidelog.wal.format.epoch import Epoch, Seal, check_shape
from tidelog.wal.format.link import Tail
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.streams import Control, check_control, check_stream, encode_control
from tidelog.wal.read.head import Head
from tidelog.wal.read.limits import check_time_us
from tidelog.wal.slot_protocol.admission import admit
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.epoch_end import End, end_of_epoch
from tidelog.wal.slot_protocol.fencing import Fencer, log_sealed
from tidelog.wal.slot_protocol.pipeline import Pipeline, Sent

ROLLUP_LOOK_US: Final = 50_000  # How often a writer looks whether there is enough to roll up.
SHARES_MAX: Final = 2  # Into so many batches a long queue is parted, if so many puts may go out.
BEHIND_MAX: Final = 4  # Roll-ups by which the manifest may be late before appends wait for it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a writer lays out its epochs.

    Units: at most ``alpha`` puts under way, in ``lanes`` directories; a roll-up after
        ``rollup_slots`` slots or ``rollup_interval_us``, whichever is first.
    """

    lanes: int = 1
    alpha: int = 8
    rollup_slots: int = 64
    rollup_interval_us: int = 1_000_000
    rollover: Rollover = field(default_factory=Rollover)

    def __post_init__(self) -> None:
        check_shape(lanes=self.lanes, alpha=self.alpha)
        if self.rollup_slots < 1 or self.rollup_interval_us < 0:
            raise UsageError("a log is rolled up after 1 slot or more, and 0 us or more")


@dataclass(slots=True, kw_only=True)
class SlotWriter(BatchWriter):
    """Appends to one log. ``writer`` is a name for people, in what it writes.

    ``resend`` is how long a put is sent again before the writer looks what became of it.
    """

    store: Store
    clock: Clock
    writer: str
    shape: Shape = field(default_factory=Shape)
    resend: Resend = field(default_factory=lambda: DEFAULT_RESEND)
    _turn: Pipeline | None = None
    _head: Head | None = None
    _unrolled: list[Step] = field(default_factory=list)

    async def append(
        self,
        records: Sequence[bytes],
        *,
        stream: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append records; return the position of the first once all are durable.

        The records of one call stand together, in their order. Their time is now unless given.

        Raises:
            UsageError: there are none, or one is over 64 MiB, or the time is not from 0 on, or
            the stream has no such id. NoSuchStream: the stream is not open. NOT_APPLIED.
            BusyError: ``wait`` is False, and too much is waiting already. HandleError: the writer
            is closed. Fenced: another writer took over. NOT_APPLIED. LogSealed: the log takes no
            more. NOT_APPLIED. OutcomeUnknown: the store cannot be reached any more; see
            `tidelog.wal.slot_protocol.epoch_end`. LocationError: it never could.
            NOT_APPLIED.
        """
        bodies = pa.array(records, pa.binary())
        return await self.append_arrow(bodies, stream=stream, timestamp_us=timestamp_us, wait=wait)

    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array, none of which is null; see `append`."""
        if timestamp_us is not None:
            check_time_us(timestamp_us)
        if stream is not None:
            check_stream(stream)
        return await self._submit(bodies, timestamp_us=timestamp_us, stream=stream, wait=wait)

    async def control(self, control: Control) -> int:
        """Append a control record; return its position once it is durable.

        Raises:
            NameTaken: it opens a stream that is open. NoSuchStream: it closes or describes one that
            is not. UsageError: too many are open, or the id or the meta is none. All NOT_APPLIED.
            Otherwise see `append`.
        """
        check_control(control)
        return await self._submit(pa.array([encode_control(control)], pa.binary()), control=control)

    async def _serve(self) -> None:
        """Take turn after turn, until closed and nothing is left; then roll up."""
        while await self._work_waits():
            try:
                turn = self._turn = self._turn or await self._open()
            except TidelogError as error:
                await self._refuse_waiting(error)
                continue
            await self._take(turn)
            if turn.doubt is not None:
                self._turn = await self._resolve(turn, turn.doubt)
            elif turn.fence is not None:
                await self._queue.abandon(over(turn.fence))
        last: Pipeline | None = self._turn
        is_clean = last is not None and last.is_idle
        await self._roll_up_quietly(closing=last.tail if last is not None and is_clean else None)

    async def _open(self) -> Pipeline:
        opener = Fencer(store=self.store, clock=self.clock, writer=self.writer)
        ended = await opener.open(lanes=self.shape.lanes, alpha=self.shape.alpha)
        self._head, self._unrolled = ended.head, list(ended.steps)
        return Pipeline(
            store=self.store,
            clock=self.clock,
            writer=self.writer,
            resend=self.resend,
            tail=ended.tail,
        )

    async def _take(self, turn: Pipeline) -> None:
        """Send batches until the turn is over, or closed and all are settled."""
        async with asyncio.TaskGroup() as group:
            rolling = group.create_task(self._roll())
            while await self._is_to_send(turn):
                if not await self._has_token(self.clock):
                    continue
                begun_us = self.clock.monotonic_us()
                batch = await self._admitted(turn)
                if not batch:
                    continue
                slot = await turn.place(batch)
                group.create_task(self._put(turn, slot))
                await self._pace(begun_us, self.clock)
            rolling.cancel()

    async def _is_to_send(self, turn: Pipeline) -> bool:
        """Wait until there is work and room for it; False if the turn is over instead."""
        queue = self._queue

        def has_end() -> bool:
            return turn.is_over or (queue.is_closing and not queue and not turn.under_way)

        def has_work() -> bool:
            behind = len(self._unrolled) + turn.under_way
            return (
                len(queue) > 0 and turn.has_room and behind < BEHIND_MAX * self.shape.rollup_slots
            )

        async with queue.changed:
            await queue.changed.wait_for(lambda: has_end() or has_work())
        return not has_end()

    async def _admitted(self, turn: Pipeline) -> list[Work]:
        """Take the next batch, without what does not fit the streams that are open; tell that."""
        admitted, refused = admit(
            turn.tail.streams, self._queue.take(shares=min(self.shape.alpha, SHARES_MAX))
        )
        for work, error in refused:
            await self._queue.fail([work], error)
        return admitted

    async def _put(self, turn: Pipeline, slot: int) -> None:
        await turn.put(slot)
        await self._settle(turn)

    async def _settle(self, turn: Pipeline, *, below: int | None = None) -> None:
        for sent in list(turn.settled(below=below)):
            if below is None:
                self._unrolled.append(sent.fragment)
            await self._queue.settle(sent.batch, sent.fragment.start)
        async with self._queue.changed:
            self._queue.changed.notify_all()

    async def _resolve(self, turn: Pipeline, doubt: LocationError) -> Pipeline | None:
        """Learn what became of each slot from the fence that ends the epoch, ours if need be.

        What is not in the log is sent again in the next turn, which this gives, unless another
        writer had ended the epoch.
        """
        for attempt in range(DEFAULT_RESEND.attempts):
            if attempt:
                await self.clock.sleep(backoff_us(attempt, self.clock))
            try:
                end, following = await self._end_of(turn, is_again=attempt > 0)
                break
            except (LocationError, ContentionError) as error:
                doubt = error if isinstance(error, LocationError) else doubt
        else:
            await self._give_up(turn.rest(), doubt)
            return None
        await self._settle(turn, below=end.slot)
        if following is None:
            await self._queue.abandon(over(end.after))
        else:
            for sent in reversed(turn.rest()):
                self._queue.give_back(sent.batch)
        return following

    async def _end_of(self, turn: Pipeline, *, is_again: bool) -> tuple[End, Pipeline | None]:
        """Return where a turn ended, and the next one if it was ended for that."""
        following = None
        end = await end_of_epoch(self.store, turn.epoch, clock=self.clock)
        if end is None or is_again:
            # An earlier try may have ended the epoch with a fence of ours, and known no more.
            with suppress(LogSealed):
                following = await self._open()
            end = await end_of_epoch(self.store, turn.epoch, clock=self.clock)
        if end is None:
            raise InvariantError("an epoch that was ended has no end", epoch=turn.epoch.name)
        return end, following

    async def _give_up(self, rest: Sequence[Sent], reason: TidelogError) -> None:
        for sent in rest:
            unknown = OutcomeUnknown(
                "the store cannot be reached: whether the records are in the log shows when it is "
                "opened again",
                path=sent.fragment.path,
                reason=reason,
            )
            await self._queue.fail(sent.batch, unknown)

    async def _refuse_waiting(self, error: TidelogError) -> None:
        waiting: list[Work] = []
        while self._queue:
            waiting += self._queue.take()
        await self._queue.fail(waiting, error)

    async def _roll(self) -> None:
        """Roll up as often as the shape says, while the turn lasts."""
        while True:
            async with self._queue.changed:
                await self._queue.changed.wait_for(lambda: bool(self._unrolled))
            due_us = self.clock.monotonic_us() + self.shape.rollup_interval_us
            while len(self._unrolled) < self.shape.rollup_slots:
                left_us = due_us - self.clock.monotonic_us()
                if left_us <= 0:
                    break
                await self.clock.sleep(min(left_us, ROLLUP_LOOK_US))
            await self._roll_up_quietly()
            async with self._queue.changed:
                self._queue.changed.notify_all()

    async def _roll_up_quietly(self, *, closing: Tail | None = None) -> None:
        """Roll up what is committed; what fails is tried again with the next."""
        steps = list(self._unrolled)
        if self._head is None or not (steps or closing):
            return
        roller = Checkpointer(
            store=self.store, clock=self.clock, writer=self.writer, rollover=self.shape.rollover
        )
        with suppress(LocationError, ContentionError):
            self._head = await roller.roll_up(self._head, steps, closing=closing)
            del self._unrolled[: len(steps)]


def over(after: Epoch | Seal) -> TidelogError:
    """Return what a writer says whose epoch was ended by another."""
    if isinstance(after, Seal):
        return log_sealed(after)
    return Fenced(
        "another writer took over the log: open it again to go on",
        by=repr(after.opener),
        slot=after.first_slot,
    )
