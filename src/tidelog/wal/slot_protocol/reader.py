"""The reader of a slot log: it reads the manifest's fragments, then slot by slot to the end.

A reader takes a missing slot for the end only if the manifest, read after the miss, has not gone
past it. Otherwise the slot may be missing because it was collected. All records acknowledged before
a read began are below the first slot that is missing then. So a read stops there, and it ends
however fast a writer appends.
Source: wal3-draft, "Reading"; design page 3, "Read".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.core.lookahead import AT_ONCE_MAX, BYTES_MAX
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Tail, plain
from tidelog.wal.format.manifest import Manifest, overlaps, tail_of
from tidelog.wal.format.pin import Pin, problems_of_pin
from tidelog.wal.format.slot_object import checked_data
from tidelog.wal.read.bounds import POLL_FIRST_US, POLL_MOST_US, Bounds
from tidelog.wal.read.head import TreeReader, load_past
from tidelog.wal.read.record_reader import Leaf, RecordReader, records_between
from tidelog.wal.read.stream_selection import ALL, Selection
from tidelog.wal.slot_protocol.chain_reader import ChainReader, TailProbe, WalkedEnd, has_gone_on

MANIFEST_EVERY_US: Final = 5_000_000


@dataclass(slots=True, kw_only=True)
class SlotReader:
    """A reader of the log at the root of ``store``.

    Units:
        window_bytes: bytes of fragments that are read ahead, approximately.
        reads: fragments that are read ahead, at most.
    """

    store: Store
    clock: Clock
    reads: int = AT_ONCE_MAX
    window_bytes: int = BYTES_MAX
    tree: TreeReader = field(init=False)
    records: RecordReader = field(init=False)
    walker: ChainReader = field(init=False)

    def __post_init__(self) -> None:
        self.tree = TreeReader(store=self.store, clock=self.clock, reads=self.reads)
        self.records = RecordReader(
            tree=self.tree, codec=checked_data, window_bytes=self.window_bytes
        )
        self.walker = ChainReader(store=self.store, clock=self.clock, reads=self.reads)

    async def manifest(self, *, checked: bool = True) -> Manifest:
        """Read the manifest; see `TreeReader.manifest`.

        Raises:
            UsageError: the log has wal3's protocol.
        """
        manifest = await self.tree.manifest(checked=checked)
        tail_of(manifest)
        return manifest

    async def bounds(self) -> Bounds:
        """Return the oldest retained position, the next position, and the seal."""
        end = await self.end()
        return Bounds(oldest=end.manifest.oldest, next=end.tail.position, seal=end.seal)

    async def end(self) -> WalkedEnd:
        """Return the end of the log; see `ChainReader.end`."""
        return await self.walker.end()

    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """Return the fragments that overlap the positions ``[start, limit)``, in order.

        Raises:
            CorruptionError: the manifest's tree is broken.
        """
        while True:
            end = await self.end()
            try:
                named = await self.tree.fragments_of(end.manifest, start=start, limit=limit)
            except ObjectNotFound as error:
                await load_past(self.store, end.manifest, error)
                continue
            past = [one for one in end.fragments if overlaps(one, start, limit)]
            return [*named, *map(plain, past)]

    async def scan(
        self,
        start: int = 0,
        *,
        limit: int | None = None,
        selection: Selection = ALL,
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the positions ``[start, limit)`` that exist now, in order.

        Fragments that hold nothing of the ``selection`` are not read. Start 0 is the oldest
        retained record.

        Shape: tables as in `tidelog.wal.format.slot_object`, none of them empty, each with records
        of one fragment.

        Raises:
            PositionCollected: records at or after ``start`` were collected, before or during the
            read.
            CorruptionError: an object is missing or changed.
        """
        reading = _SlotRead(self, await self.manifest(), start, limit, selection)
        while True:
            async with aclosing(reading.go(bounded=True)) as found:
                async for records in found:
                    yield records
            if reading.is_done() or not reading.renew(await self.manifest()):
                return

    async def follow(
        self, start: int = 0, *, selection: Selection = ALL
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield records as `scan` does, then new records as they arrive, until the log is sealed.

        On an idle log the reader asks for the next slot with growing pauses, and every few seconds
        for the manifest.
        """
        reading = _SlotRead(self, await self.manifest(), start, None, selection)
        seen_us, wait_us = self.clock.monotonic_us(), POLL_FIRST_US
        while True:
            async with aclosing(reading.go()) as found:
                async for records in found:
                    yield records
                    wait_us = POLL_FIRST_US
            if reading.is_done():
                return
            if self.clock.monotonic_us() - seen_us >= MANIFEST_EVERY_US:
                if reading.renew(await self.manifest()):
                    wait_us = POLL_FIRST_US
                seen_us = self.clock.monotonic_us()
            await self.clock.sleep(wait_us)
            wait_us = min(2 * wait_us, POLL_MOST_US)


class _SlotRead:
    """The progress of one read: the next position, and the tail of the walk.

    A ``bounded`` read looks once for the end of the log, as soon as it has yielded its first
    records.
    """

    def __init__(
        self,
        reader: SlotReader,
        manifest: Manifest,
        start: int,
        limit: int | None,
        selection: Selection,
    ) -> None:
        self._reader = reader
        self._manifest: Manifest | None = manifest
        self._tail: Tail = tail_of(manifest)
        self._reached = start or manifest.oldest
        self._limit = limit
        self._selection = selection
        self._seal = _seal_of(manifest)
        self._seen: TailProbe | None = None

    def is_done(self) -> bool:
        """Return True if no more records can follow."""
        if self._limit is not None and self._reached >= self._limit:
            return True
        return self._seal is not None and self._manifest is None

    def renew(self, manifest: Manifest) -> bool:
        """Continue from a newer manifest if it is past the walk's tail and the read needs it."""
        if not has_gone_on(manifest, self._tail):
            return False
        if self._seen is not None:
            if manifest.oldest > self._seen.tail.position:
                # The slots missing in the first look may have been collected: look again.
                self._seen = None
            elif self._tail.path not in self._seen.sizes:
                return False  # The read has all records that existed when it began.
        self._manifest, self._tail, self._seal = manifest, tail_of(manifest), _seal_of(manifest)
        return True

    async def go(self, *, bounded: bool = False) -> AsyncGenerator[pa.Table, None]:
        """Yield from the manifest's fragments, unless done, then from slots to the first gap."""
        if self._manifest is not None:
            async with aclosing(self._named(self._manifest)) as named:
                async for records in named:
                    yield records
                    if bounded:
                        await self._look()
            self._manifest = None
        if self.is_done():
            return
        if bounded and self._seen is None:
            first = self._tail
            async with aclosing(self._past(TailProbe(first, {first.path: 0}))) as one:
                async for records in one:
                    yield records
            if self.is_done():
                return
            if self._tail == first:
                self._seen = TailProbe(first)  # The slot is missing.
            await self._look()
        async with aclosing(self._past(self._seen)) as past:
            async for records in past:
                yield records

    async def _look(self) -> None:
        if self._seen is None and (self._limit is None or self._limit > self._tail.position):
            self._seen = await self._reader.walker.look(self._tail)

    async def _named(self, manifest: Manifest) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the fragments that a manifest lists."""
        found = self._reader.records.scan(
            manifest, self._reached, limit=self._limit, wanted=self._selection.may_be_in
        )
        async with aclosing(found):
            async for reached, records in found:
                self._reached = reached
                if (selected := self._selection.of(records)).num_rows:
                    yield selected
        self._pass(manifest.next)

    async def _past(self, seen: TailProbe | None) -> AsyncGenerator[pa.Table, None]:
        """Yield records from the tail to the first missing slot, or to the end of ``seen``."""
        start = self._reached
        found = self._reader.records.read(self._leaves(seen))
        async with aclosing(found):
            async for fragment, records in found:
                limit = fragment.limit if self._limit is None else self._limit
                part = records_between(records, fragment, start, limit)
                self._pass(fragment.limit)
                if (selected := self._selection.of(part)).num_rows:
                    yield selected
        self._pass(self._tail.position)

    async def _leaves(self, seen: TailProbe | None) -> AsyncGenerator[Leaf, None]:
        """Walk ahead of the records read, and yield the fragments that the read wants."""
        start = self._reached
        walked = self._reader.walker.walk(self._tail, seen=seen)
        async with aclosing(walked):
            async for passed in walked:
                self._tail = passed.tail
                if isinstance(passed.step, Seal):
                    self._seal = passed.step
                if not isinstance(passed.step, Fragment) or passed.step.limit <= start:
                    continue
                if self._selection.may_be_in(passed.step):
                    yield Leaf(passed.step, passed.data)
                if self._limit is not None and passed.tail.position >= self._limit:
                    return

    def _pass(self, position: int) -> None:
        """Advance the reached position, also past records that the read did not want."""
        limit = position if self._limit is None else min(position, self._limit)
        self._reached = max(self._reached, limit)


async def scan_pinned(
    store: Store, clock: Clock, pin: Pin, *, selection: Selection = ALL
) -> AsyncGenerator[pa.Table, None]:
    """Yield the records that a pin holds, in order.

    Raises:
        CorruptionError: an object is missing or changed, or the pin does not name all it holds.
    """
    if problems := problems_of_pin(pin):
        raise CorruptionError(
            f"a pin contradicts itself ({'; '.join(problems)}): restore it, or drop it",
            path=pin.path,
        )
    reader = SlotReader(store=store, clock=clock)
    begun = await reader.manifest()
    held = replace(begun, snapshots=pin.snapshots, fragments=pin.fragments, initial_offset=None)
    found = reader.records.scan(held, pin.start, limit=pin.limit, wanted=selection.may_be_in)
    async with aclosing(found):
        async for _, records in found:
            if (selected := selection.of(records)).num_rows:
                yield selected


def _seal_of(manifest: Manifest) -> Seal | None:
    return None if manifest.chain is None else manifest.chain.seal
