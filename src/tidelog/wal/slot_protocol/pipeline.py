"""The pipeline of one writer's epoch: batches become slots, and several puts are in flight.

Source: wal3-draft, "Concurrent Writes"; design page 3, "Append".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.core.clock import Clock, wall_us
from tidelog.errors import CorruptionError, LocationError, Outcome, TidelogError
from tidelog.store.conditional import Resend, create_or_read
from tidelog.store.port import Store
from tidelog.wal.append.append_errors import not_encoded
from tidelog.wal.append.queue import bodies_of, keys_in
from tidelog.wal.append.work import Work
from tidelog.wal.format.arrays import array_of_numbers, binary_array
from tidelog.wal.format.epoch import Epoch
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import DataLink, Tail
from tidelog.wal.format.slot_object import decode_link, encode_data, place_slot_records
from tidelog.wal.format.streams import CONTROL
from tidelog.wal.read.epoch_history import with_epochs_of
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import Step, chain_of, has_slot, refuse_full, step
from tidelog.wal.slot_protocol.window import SendWindow, answer, launch, meet_fence

READS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that has a slot but is not acknowledged. ``before`` is the tail without it."""

    batch: Sequence[Work]
    fragment: Fragment
    data: bytes
    before: Tail


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """The slots of this writer's epoch, from the fence that opened it.

    ``fence`` is the epoch or seal after this epoch, once a fence was met. ``doubt`` is the error
    after which nothing more is sent: a put has an unknown outcome, or a refused put left a gap.
    """

    store: Store
    clock: Clock
    writer: str
    resend: Resend
    tail: Tail
    fence: Epoch | Seal | None = None
    doubt: TidelogError | None = None
    _epoch: Epoch = field(init=False)
    _window: SendWindow = field(init=False)
    _sent: dict[int, SentBatch] = field(default_factory=dict)
    _puts: int = 0
    _refused: dict[int, LocationError] = field(default_factory=dict)
    _void_from: int | None = None

    def __post_init__(self) -> None:
        self._epoch = self.tail.epoch
        self._window = SendWindow(self.tail.slot, self.tail.slot)

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def has_room(self) -> bool:
        """Return True if another batch may be sent."""
        return self.doubt is None and self._window.has_room(self._epoch.alpha)

    @property
    def is_over(self) -> bool:
        """Return True if no further slot of this epoch can be settled by the pipeline itself."""
        return self._window.is_over or (self.doubt is not None and not self._puts)

    @property
    def is_idle(self) -> bool:
        """Return True if the epoch is still this writer's and each of its puts was answered."""
        return self.doubt is None and self.fence is None and not self._puts and not self._sent

    @property
    def under_way(self) -> int:
        return len(self._sent)

    def is_void(self, slot: int) -> bool:
        """Return True if a slot is known to be void: a lower one was refused, and stays empty."""
        return self._void_from is not None and slot >= self._void_from

    async def place(self, batch: Sequence[Work]) -> int | None:
        """Give a batch the next slot, and return the slot; the caller then sends it with `put`.

        Return None if the store refused the previous slot during encoding. That slot is free again,
        and the batch was admitted to streams that the refused batch would have opened. So the
        caller admits it again.

        Raises:
            InvariantError: the batch cannot be encoded. NOT_APPLIED.
            UsageError: the log has no room for the batch. NOT_APPLIED.
        """
        tail = self.tail
        refuse_full(tail)
        work = partial(_encode, batch, tail, wall_us(self.clock), self.writer)
        try:
            link, data = await self.clock.offload(work)
        except (pa.ArrowException, OverflowError, MemoryError) as error:
            raise not_encoded(error) from error
        if self.tail != tail:
            return None
        self.tail, fragment = step(tail, link, len(data))
        assert isinstance(fragment, Fragment), "what was encoded is data"
        self._sent[tail.slot] = SentBatch(batch, fragment, data, tail)
        self._window = launch(self._window)
        self._puts += 1
        position = tail.position
        for one in batch:
            one.is_sent = True
            if one.placing is not None:
                one.placing.order(position)
            position += len(one.bodies)
        return tail.slot

    async def put(self, slot: int) -> None:
        """Send a slot's batch until the slot's content is known, or the time to resend is over.

        Raises:
            CorruptionError: the slot holds neither this batch nor a fence.
        """
        sent = self._sent[slot]
        try:
            await self._put(slot, sent)
        except CorruptionError:
            raise
        except TidelogError as error:
            self.doubt = error
        finally:
            self._puts -= 1

    async def _put(self, slot: int, sent: SentBatch) -> None:
        try:
            found = await self._create(sent)
        except TidelogError as error:
            if error.outcome is not Outcome.NOT_APPLIED:
                raise
            self._refuse(slot, sent, error)
            return
        if found == sent.data:
            self._window = answer(self._window, slot)
            return
        met = await self._met(slot, sent, found)
        if isinstance(met, Fragment):
            path = sent.fragment.path
            raise CorruptionError(
                "another process wrote into this writer's epoch: scrub the log", path=path
            )
        if await self._has_landed(slot):
            # The batch was stored and collected. A late opener then found the slot empty, and its
            # fence is stray.
            self._window = answer(self._window, slot)
            return
        if self._window.fence is None or slot < self._window.fence:
            self.fence = met
        self._window = meet_fence(self._window, slot)

    async def _create(self, sent: SentBatch) -> bytes:
        path, clock = sent.fragment.path, self.clock
        return await create_or_read(self.store, path, sent.data, clock=clock, resend=self.resend)

    async def _met(self, slot: int, sent: SentBatch, found: bytes) -> Step:
        """Return the step that a foreign object in one of this writer's slots stands for."""
        path, tail = sent.fragment.path, replace(self.tail, slot=slot)
        for _ in range(READS_MAX - 1):
            with suppress(CorruptionError):  # The answer may have been cut short.
                return step(tail, decode_link(found, path=path), len(found))[1]
            found = await self._create(sent)
        return step(tail, decode_link(found, path=path), len(found))[1]

    def _refuse(self, slot: int, sent: SentBatch, error: TidelogError) -> None:
        """Note that the store refused the object at every try, so it is certainly not stored."""
        if not isinstance(error, LocationError):
            error = LocationError(
                "the store refused the records, so they are not in the log", reason=error
            )
        self._refused[slot] = error
        if slot == self._window.next - 1 and self.doubt is None:
            # No later slot is in use, so the next batch can take this one. After a later slot, a
            # gap would remain.
            self.tail, self._window = sent.before, replace(self._window, next=slot)
            return
        self.doubt = error
        self._void_from = slot if self._void_from is None else min(slot, self._void_from)

    async def _has_landed(self, slot: int) -> bool:
        manifest = (await load_head(self.store)).manifest
        chain = await with_epochs_of(self.store, chain_of(manifest), slot)
        return has_slot(replace(manifest, chain=chain), self._epoch, slot)

    def settled(self, *, below: int | None = None) -> Iterator[SentBatch]:
        """Yield and remove the batches in the log: those below ``below``, or the committed ones."""
        committed = self._window.committed if below is None else below
        for slot in sorted(self._sent):
            if slot < committed:
                yield self._sent.pop(slot)

    def refused(self) -> Iterator[tuple[SentBatch, LocationError]]:
        """Yield and remove the batches that the store refused, each with its error."""
        for slot in sorted(self._refused):
            yield self._sent.pop(slot), self._refused.pop(slot)

    def rest(self) -> list[SentBatch]:
        """Remove and return all other batches, in order."""
        rest = [self._sent[slot] for slot in sorted(self._sent)]
        self._sent.clear()
        return rest


def _encode(batch: Sequence[Work], tail: Tail, now_us: int, writer: str) -> tuple[DataLink, bytes]:
    counts = [len(work.bodies) for work in batch]
    times = [now_us if work.timestamp_us is None else work.timestamp_us for work in batch]
    records = place_slot_records(
        bodies_of(batch),
        start=tail.position,
        times=np.repeat(np.array(times, dtype=np.int64), counts),
        streams=_streams_of(batch, counts),
        keys=keys_in(batch),
    )
    return encode_data(records, tail, writer=writer)


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
