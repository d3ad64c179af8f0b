"""One writer's turn: its batches become the slots of its epoch, several under way at once.

Source: wal3-draft, "Concurrent Writes"; design page 3, "Append".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tidelog.clock import Clock
from tidelog.errors import CorruptionError, LocationError
from tidelog.store.conditional import Resend, create_or_read
from tidelog.store.port import Store
from tidelog.wal.append.queue import Work, bodies_of
from tidelog.wal.format.epoch import Epoch, Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import DataLink, Tail
from tidelog.wal.format.slot_object import decode_link, encode_data, place_slot_records
from tidelog.wal.format.streams import CONTROL
from tidelog.wal.read.epoch_history import with_epochs_of
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import chain_of, has_slot, step
from tidelog.wal.slot_protocol.window import SendWindow, answer, launch, meet_fence


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that was given a slot, and is not acknowledged."""

    batch: Sequence[Work]
    fragment: Fragment
    data: bytes


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """The slots of an epoch that is ours, from the fence that opened it on.

    ``fence`` is what came after the turn, if a fence was met; ``doubt`` is why a put was given up.
    """

    store: Store
    clock: Clock
    writer: str
    resend: Resend
    tail: Tail
    fence: Epoch | Seal | None = None
    doubt: LocationError | None = None
    _epoch: Epoch = field(init=False)
    _flight: SendWindow = field(init=False)
    _sent: dict[int, Sent] = field(default_factory=dict)
    _puts: int = 0

    def __post_init__(self) -> None:
        self._epoch = self.tail.epoch
        self._flight = SendWindow(self.tail.slot, self.tail.slot)

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def has_room(self) -> bool:
        """Say whether another batch may be sent."""
        return self.doubt is None and self._flight.has_room(self._epoch.alpha)

    @property
    def is_over(self) -> bool:
        """Say whether nothing more can come of this turn."""
        return self._flight.is_over or (self.doubt is not None and not self._puts)

    @property
    def is_idle(self) -> bool:
        """Say whether the epoch is still this writer's, and each of its puts was answered."""
        return self.doubt is None and self.fence is None and not self._puts and not self._sent

    @property
    def under_way(self) -> int:
        return len(self._sent)

    async def place(self, batch: Sequence[Work]) -> int:
        """Return a batch the next slot; it is to be sent with `put`."""
        tail = self.tail
        work = partial(_encode, batch, tail, self.clock.now_us(), self.writer)
        link, data = await self.clock.offload(work)
        self.tail, fragment = step(tail, link, len(data))
        assert isinstance(fragment, Fragment), "what was encoded is data"
        self._sent[tail.slot] = Sent(batch, fragment, data)
        self._flight = launch(self._flight)
        self._puts += 1
        return tail.slot

    async def put(self, slot: int) -> None:
        """Send a slot's batch until it is known what is in the slot, or patience is at its end.

        Raises:
            CorruptionError: what is there is neither ours nor a fence.
        """
        try:
            await self._put(slot, self._sent[slot])
        except LocationError as error:
            self.doubt = error
        finally:
            self._puts -= 1

    async def _put(self, slot: int, sent: Sent) -> None:
        found = await create_or_read(
            self.store, sent.fragment.path, sent.data, clock=self.clock, resend=self.resend
        )
        if found == sent.data:
            self._flight = answer(self._flight, slot)
            return
        path = sent.fragment.path
        _, met = step(replace(self.tail, slot=slot), decode_link(found, path=path), len(found))
        if isinstance(met, Fragment):
            raise CorruptionError("somebody else wrote into this writer's epoch", path=path)
        if await self._has_landed(slot):
            # Ours had landed, and was collected; then a late opener found the slot empty.
            self._flight = answer(self._flight, slot)
            return
        if self._flight.fence is None or slot < self._flight.fence:
            self.fence = met
        self._flight = meet_fence(self._flight, slot)

    async def _has_landed(self, slot: int) -> bool:
        manifest = (await load_head(self.store)).manifest
        chain = await with_epochs_of(self.store, chain_of(manifest), slot)
        return has_slot(replace(manifest, chain=chain), self._epoch, slot)

    def settled(self, *, below: int | None = None) -> Iterator[Sent]:
        """Take out the batches that are in the log now: those ``below`` a slot, if it is known."""
        committed = self._flight.committed if below is None else below
        for slot in sorted(self._sent):
            if slot < committed:
                yield self._sent.pop(slot)

    def rest(self) -> list[Sent]:
        """Take out all other batches, in order."""
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
    )
    return encode_data(records, tail, writer=writer)


def _streams_of(batch: Sequence[Work], counts: Sequence[int]) -> pa.BinaryArray | None:
    ids = [work.stream if work.control is None else CONTROL for work in batch]
    if all(stream is None for stream in ids):
        return None
    which = np.repeat(np.arange(len(ids)), counts)
    repeated: pa.BinaryArray = pa.array(ids, pa.binary()).take(which)
    return repeated
