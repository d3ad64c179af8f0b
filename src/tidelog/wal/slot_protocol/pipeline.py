"""The state of one writer's epoch: the batches that wait, and the slots under way. Pure.

Each event is one call. `Queue.add` takes an append, and `Queue.close` ends the intake.
`Pipeline.next_batch` is the tick of the clock: it returns the batch to send, or how long to wait.
`launch` gives an encoded batch its slot, and returns the object to put. `note_stored`,
`note_fence`, `note_refusal` and `note_doubt` take the answer to a put. The writer in
`tidelog.wal.slot_protocol.writer` only encodes, sends and waits.

An append to a stream is admitted only if the stream is open at the append's place in the log. The
tail supplies the open streams, and counts all batches in flight as written. If one of those batches
fails and no later slot is in use, the writer takes its place back and admits the later batches
again. Otherwise the epoch stops.

A slot is acknowledged once its own put and the puts of all lower slots are answered as done. A
fence in a slot decides nothing about lower slots, because one of them may hold another fence. So
the writer sends the puts of lower slots until each is answered.
Invariants: ``base <= committed <= next``; at most alpha slots are in flight, counted from
``committed``. `tidelog.wal.slot_protocol.burst` relies on the second one: it shows how an opener
overtakes a writer.
Source: wal3-draft, "Concurrent Writes"; design page 3, "Append"; docs/decisions/0010.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.errors import LocationError, TidelogError, UsageError
from tidelog.wal.append.append_errors import not_encoded, out_of_reach
from tidelog.wal.append.bodies import bodies_of, keys_in
from tidelog.wal.append.queue import Queue
from tidelog.wal.append.work import Work
from tidelog.wal.format.arrays import array_of_numbers, binary_array
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import DataLink, Epoch, Tail, fragment_of
from tidelog.wal.format.slot_object import encode_data, place_slot_records
from tidelog.wal.format.streams import CONTROL, Streams, enact, no_such_stream, refusal
from tidelog.wal.slot_protocol.chain import Step

SHARES_MAX: Final = 2  # Batches into which a long queue is split, if that many puts may be sent.


@dataclass(slots=True)
class SendWindow:
    """The slots ``[base, next)`` that a writer used. Slots below ``base`` are committed.

    ``done`` has the slots whose put is answered as done. ``fence`` is the lowest slot known to hold
    a fence.
    """

    base: int
    next: int
    done: set[int] = field(default_factory=set)
    fence: int | None = None

    @property
    def committed(self) -> int:
        """Return the first slot that is not known to be committed."""
        slot = self.base
        while slot in self.done and slot != self.fence:
            slot += 1
        return slot

    @property
    def is_over(self) -> bool:
        """Return True if all slots below the first fence are committed; all others are void."""
        return self.fence is not None and self.committed == self.fence

    def has_room(self, alpha: int) -> bool:
        """Return True if the writer may send another put."""
        # From `committed`, not by the number of unanswered puts. Otherwise the writer could run far
        # ahead of one slow put, and past the signs of an opener.
        return self.fence is None and self.next - self.committed < alpha

    def answer(self, slot: int) -> None:
        """Note that the data of a slot is stored."""
        self.done.add(slot)
        before, self.base = self.base, self.committed
        self.done.difference_update(range(before, self.base))

    def meet_fence(self, slot: int) -> None:
        """Note a fence in a slot of the writer's batch."""
        # Answers arrive in any order, and only the lowest fence ends the epoch.
        self.fence = slot if self.fence is None else min(self.fence, slot)


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that has a slot but is not acknowledged. ``before`` is the tail without it."""

    batch: Sequence[Work]
    fragment: Fragment
    data: bytes
    before: Tail


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be sent for ``rest_us``, or with None until the queue changes."""

    rest_us: int | None = None


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """The slots of this writer's epoch, from the fence that opened it.

    ``steps`` has the committed steps that the manifest lacks; roll-ups remove them. With
    ``behind_max`` or more of them, appends wait. ``fence`` is the epoch or seal after this epoch,
    once a fence was met. ``doubt`` is the error after which nothing more is sent: a put has an
    unknown outcome, or a refused put left a gap.
    """

    queue: Queue
    tail: Tail
    steps: list[Step]
    behind_max: int
    epoch: Epoch = field(init=False)
    fence: Epoch | Seal | None = None
    doubt: TidelogError | None = None
    _window: SendWindow = field(init=False)
    _sent: dict[int, SentBatch] = field(default_factory=dict)
    _puts: int = 0
    _void_from: int | None = None
    _begun_us: int = 0

    def __post_init__(self) -> None:
        self.epoch = self.tail.epoch
        self._window = SendWindow(self.tail.slot, self.tail.slot)
        self.queue.next_position = self.tail.position

    @property
    def is_idle(self) -> bool:
        """Return True if the epoch is still this writer's and each of its puts was answered."""
        return self.doubt is None and self.fence is None and not self._puts and not self._sent

    @property
    def is_over(self) -> bool:
        """Return True if no further slot of this epoch can be settled by the pipeline itself."""
        return self._window.is_over or (self.doubt is not None and not self._puts)

    @property
    def under_way(self) -> int:
        return len(self._sent)

    def next_batch(self, now_us: int) -> list[Work] | Wait | None:
        """Return the next batch to encode, or a wait; None if no further batch will come.

        The batch lacks the appends that do not fit the open streams, and may be empty.
        """
        queue, may_send = self.queue, self._may_send()
        queue.is_resting = False
        rest_us = queue.pause_us(now_us)
        if rest_us is None:
            has_ended = self.doubt is not None or self.fence is not None
            if (has_ended and self.is_over) or (queue.is_closing and not queue and not self._sent):
                return None
            if not queue or not may_send:
                return Wait()
            rest_us = queue.token_us(now_us)
        if rest_us is not None:
            queue.is_resting = True
            return Wait(rest_us)
        batch = queue.take(shares=min(self.epoch.alpha, SHARES_MAX))
        self._begun_us = now_us
        admitted, refused = admit(self.tail.streams, batch)
        for work, error in refused:
            queue.fail([work], error)
        return admitted

    def _may_send(self) -> bool:
        # A closing writer has only a little work left, so it does not wait for the manifest.
        is_near = self.queue.is_closing or len(self.steps) + len(self._sent) < self.behind_max
        return is_near and self.doubt is None and self._window.has_room(self.epoch.alpha)

    def launch(
        self, batch: Sequence[Work], before: Tail, link: DataLink, data: bytes
    ) -> SentBatch | None:
        """Give a batch that was encoded for a tail its slot; return the object to put.

        Return None if the store refused the previous slot during encoding. That slot is free again,
        and the batch was admitted to streams that the refused batch would have opened. So it is
        admitted again.
        """
        if self.tail is not before:
            self.queue.give_back(batch)
            return None
        fragment, after = fragment_of(link, before.path, len(data)), before.after(link, len(data))
        sent = self._sent[before.slot] = SentBatch(batch, fragment, data, before)
        self.tail, self.queue.next_position = after, after.position
        self._window.next += 1
        self._puts += 1
        position = before.position
        for work in batch:
            work.is_sent = True
            if work.placing is not None:
                work.placing.order(position)
            position += len(work.bodies)
        self.queue.begun_us = self._begun_us
        return sent

    def note_stored(self, sent: SentBatch) -> None:
        """Note that a batch is stored in its slot; settle the batches that this commits."""
        self._window.answer(sent.before.slot)
        self._end_put()

    def note_fence(self, sent: SentBatch, fence: Epoch | Seal) -> None:
        """Note that another process's fence is stored in the slot of a batch."""
        slot = sent.before.slot
        if self._window.fence is None or slot < self._window.fence:
            self.fence = fence
        self._window.meet_fence(slot)
        self._end_put()

    def note_doubt(self, error: TidelogError) -> None:
        """Note that the content of a batch's slot is not known."""
        self.doubt = error
        self._end_put()

    def note_refusal(self, sent: SentBatch, error: TidelogError) -> None:
        """Note that the store refused a batch at every try, so it is certainly not stored."""
        if not isinstance(error, LocationError):
            error = LocationError(
                "the store refused the records, so they are not in the log: correct the reason, "
                "then append them again",
                reason=error,
            )
        slot = sent.before.slot
        if slot == self._window.next - 1 and self.doubt is None:
            # No later slot is in use, so the next batch can take this one. After a later slot, a
            # gap would remain.
            self._window.next = slot
            self.tail, self.queue.next_position = sent.before, sent.before.position
        else:
            self.doubt = error
            self._void_from = slot if self._void_from is None else min(slot, self._void_from)
        del self._sent[slot]
        self.queue.answer(sent.batch, error)
        self._end_put()

    def settled(self, *, below: int | None = None) -> Iterator[SentBatch]:
        """Yield and remove the batches in the log: those below ``below``, or the committed ones."""
        committed = self._window.committed if below is None else below
        for slot in sorted(self._sent):
            if slot < committed:
                yield self._sent.pop(slot)

    def settle(self, *, below: int | None = None) -> None:
        """Answer the appends of the batches in the log; see `settled`."""
        for sent in self.settled(below=below):
            if below is None:
                self.steps.append(sent.fragment)
            self.queue.settle(sent.batch, sent.fragment.start)
        self.queue.notify()

    def give_back(self) -> None:
        """Put all other batches back into the queue, for the next epoch."""
        for slot in sorted(self._sent, reverse=True):
            self.queue.give_back(self._sent.pop(slot).batch)

    def give_up(self) -> None:
        """Report the outcome of sent batches as unknown; put void batches back into the queue.

        A batch is void if a lower slot was refused, and so stays empty.
        """
        reason, first = self.queue.trouble or self.doubt, self._void_from
        rest = [self._sent.pop(slot) for slot in sorted(self._sent)]
        void = [sent for sent in rest if first is not None and sent.before.slot >= first]
        for sent in reversed(void):
            self.queue.give_back(sent.batch)
        for sent in rest[: len(rest) - len(void)]:
            self.queue.doubt(sent.batch, out_of_reach(sent.fragment.path, reason))

    def _end_put(self) -> None:
        self._puts -= 1
        self.settle()


def admit(
    streams: Streams, batch: Sequence[Work]
) -> tuple[list[Work], list[tuple[Work, UsageError]]]:
    """Return the appends that fit the open streams, and the others with their errors."""
    if not any(work.control or work.stream is not None for work in batch):
        return list(batch), []
    open_now = dict(streams.by_id) if any(work.control for work in batch) else streams.by_id
    admitted: list[Work] = []
    refused: list[tuple[Work, UsageError]] = []
    for work in batch:
        error: UsageError | None = None
        if work.control is not None:
            error = refusal(open_now, work.control)
            if error is None and isinstance(open_now, dict):
                # The position is not known yet, and does not matter here.
                enact(open_now, work.control, 0)
        elif work.stream is not None and work.stream not in open_now:
            error = no_such_stream(work.stream)
        if error is None:
            admitted.append(work)
        else:
            refused.append((work, error))
    return admitted, refused


def encode_batch(
    batch: Sequence[Work], tail: Tail, *, now_us: int, writer: str
) -> tuple[DataLink, bytes]:
    """Return the link and the bytes of the object that holds a batch, at the log's tail.

    Raises:
        InvariantError: the batch cannot be encoded. NOT_APPLIED.
        UsageError: the log has no room for the batch. NOT_APPLIED.
    """
    counts = [len(work.bodies) for work in batch]
    times = [now_us if work.timestamp_us is None else work.timestamp_us for work in batch]
    try:
        streams = _streams_of(batch, counts)
        tail.refuse_full()
        records = place_slot_records(
            bodies_of(batch),
            start=tail.position,
            times=np.repeat(np.array(times, dtype=np.int64), counts),
            streams=streams,
            keys=keys_in(batch),
        )
        return encode_data(records, tail, writer=writer)
    except (pa.ArrowException, OverflowError, MemoryError) as error:
        raise not_encoded(error) from error


def _streams_of(batch: Sequence[Work], counts: Sequence[int]) -> pa.BinaryArray | None:
    ids = [work.stream if work.control is None else CONTROL for work in batch]
    if all(stream is None for stream in ids):
        return None
    values = [binary_array([stream or b"" for stream in ids]), pa.nulls(1, pa.binary())]
    which = [len(ids) if stream is None else number for number, stream in enumerate(ids)]
    repeated: pa.BinaryArray = pa.concat_arrays(values).take(
        array_of_numbers(np.repeat(which, counts))
    )
    return repeated
