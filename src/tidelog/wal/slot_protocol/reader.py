"""Reading a slot log: what its manifest names, then slot by slot to the end.

A missing slot is taken for the end only if the manifest, read after the miss, has not gone past it:
the slot may be missing because it was collected. What was there when a read began was below the
first slot that is missing, so no read goes further: it ends however fast a writer appends.
Source: wal3-draft, "Reading"; design page 3, "Read".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.clock import Clock
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Tail, plain
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.pin import Pin
from tidelog.wal.format.slot_object import SLOT_RECORDS, decode_data, problems_of_data
from tidelog.wal.format.snapshot import overlaps
from tidelog.wal.read.bounds import POLL_FIRST_US, POLL_MOST_US, Bounds
from tidelog.wal.read.head import load_past
from tidelog.wal.read.stream_selection import ALL, Selection
from tidelog.wal.read.tree_reader import READS_MAX, WINDOW_BYTES, Wal3Reader, records_between
from tidelog.wal.slot_protocol.chain import tail_of
from tidelog.wal.slot_protocol.chain_reader import ChainReader, Seen, WalkedEnd, has_gone_on

MANIFEST_EVERY_US: Final = 5_000_000
_NOTHING: Final = SLOT_RECORDS.empty_table()


@dataclass(slots=True, kw_only=True)
class SlotReader:
    """A reader of the log at the root of ``store``; see `Wal3Reader` for its limits."""

    store: Store
    clock: Clock
    reads: int = READS_MAX
    window_bytes: int = WINDOW_BYTES
    tree: Wal3Reader = field(init=False)
    walker: ChainReader = field(init=False)

    def __post_init__(self) -> None:
        self.tree = Wal3Reader(
            store=self.store,
            clock=self.clock,
            reads=self.reads,
            window_bytes=self.window_bytes,
            decode=checked_data,
        )
        self.walker = ChainReader(store=self.store, clock=self.clock, reads=self.reads)

    async def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            NoSuchLog: there is none. UsageError: the log is of the other protocol. CorruptionError:
            it cannot be read. LocationError: the store failed.
        """
        manifest = await self.tree.manifest()
        tail_of(manifest)
        return manifest

    async def bounds(self) -> Bounds:
        """Return the oldest position that is left, and the next one to come."""
        end = await self.end()
        return Bounds(oldest=end.manifest.oldest, next=end.tail.position, seal=end.seal)

    async def end(self) -> WalkedEnd:
        """Return where the log ends; see `ChainReader.end`."""
        return await self.walker.end()

    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """Return the fragments that hold any of the positions ``[start, limit)``, in order.

        Raises:
            CorruptionError: the tree is not what was written.
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
        eager: bool = True,
    ) -> AsyncIterator[pa.Table]:
        """Yield the records of the positions ``[start, limit)`` that there are now, in order.

        Fragments that hold none of the ``selection`` are not read; for ``eager`` see `Wal3Reader`.

        Shape: tables as `tidelog.wal.format.slot_object` says, none of them empty, each with
            records of one fragment. Start 0 is the oldest record that is left.

        Raises:
            PositionCollected: records from ``start`` on were collected, maybe meanwhile.
            CorruptionError: an object is missing, or is not what was written.
        """
        reading = _Reading(self, await self.manifest(), start, limit, selection, eager=eager)
        while True:
            async for records in reading.go(bounded=True):
                yield records
            if reading.is_done() or not reading.renew(await self.manifest()):
                return

    async def follow(
        self, start: int = 0, *, selection: Selection = ALL
    ) -> AsyncIterator[pa.Table]:
        """Yield records as `scan` does, and those to come as they come, until the log is sealed.

        An idle log is asked for its next slot, ever more seldom, and now and then for its manifest.
        """
        reading = _Reading(self, await self.manifest(), start, None, selection)
        seen_us, wait_us = self.clock.monotonic_us(), POLL_FIRST_US
        while True:
            async for records in reading.go():
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


class _Reading:
    """Where a read stands: the next position, and the tail of what was walked.

    One that is ``bounded`` looks once at what there is, as soon as it has given what comes first.
    """

    def __init__(
        self,
        reader: SlotReader,
        manifest: Manifest,
        start: int,
        limit: int | None,
        selection: Selection,
        *,
        eager: bool = True,
    ) -> None:
        self._reader = reader
        self._manifest: Manifest | None = manifest
        self._tail: Tail = tail_of(manifest)
        self._reached = start or manifest.oldest
        self._limit = limit
        self._selection = selection
        self._eager = eager
        self._seal = _seal_of(manifest)
        self._seen: Seen | None = None

    def is_done(self) -> bool:
        """Say whether nothing more can come."""
        if self._limit is not None and self._reached >= self._limit:
            return True
        return self._seal is not None and self._manifest is None

    def renew(self, manifest: Manifest) -> bool:
        """Go on from a newer manifest, if it has gone past what was walked, and that is wanted."""
        if not has_gone_on(manifest, self._tail):
            return False
        if self._seen is not None:
            if manifest.oldest > self._seen.tail.position:
                self._seen = None  # What was missing may have been collected: look again.
            elif self._tail.path not in self._seen.sizes:
                return False  # All that there was when the read began is read.
        self._manifest, self._tail, self._seal = manifest, tail_of(manifest), _seal_of(manifest)
        return True

    async def go(self, *, bounded: bool = False) -> AsyncIterator[pa.Table]:
        """Read what the manifest names, if that was not read, and on to the first missing slot."""
        if self._manifest is not None:
            async for records in self._named(self._manifest):
                yield records
                if bounded:
                    await self._look()
            self._manifest = None
        if self.is_done():
            return
        if bounded and self._seen is None:
            first = self._tail
            async for records in self._past(Seen(first, {first.path: 0})):
                yield records
            if self.is_done():
                return
            if self._tail == first:
                self._seen = Seen(first)  # It is missing.
            await self._look()
        async for records in self._past(self._seen):
            yield records

    async def _look(self) -> None:
        if self._seen is None and (self._limit is None or self._limit > self._tail.position):
            self._seen = await self._reader.walker.look(self._tail)

    async def _past(self, seen: Seen | None) -> AsyncIterator[pa.Table]:
        """Read on from the tail to the first missing slot, or to the end of what was seen."""
        async for passed in self._reader.walker.walk(self._tail, seen=seen):
            self._tail = passed.tail
            if isinstance(passed.step, Seal):
                self._seal = passed.step
            if not isinstance(passed.step, Fragment) or passed.step.limit <= self._reached:
                continue
            if (records := await self._of(passed.step, passed.data)).num_rows:
                yield records
            if self.is_done():
                return

    async def _named(self, manifest: Manifest) -> AsyncIterator[pa.Table]:
        """Read what a manifest names."""
        found = self._reader.tree.scan_of(
            manifest,
            self._reached,
            limit=self._limit,
            wanted=self._selection.may_be_in,
            eager=self._eager,
        )
        async for records in found:
            self._reached = records.column("position")[-1].as_py() + 1
            if (selected := self._selection.of(records)).num_rows:
                yield selected
        limit = manifest.next if self._limit is None else min(self._limit, manifest.next)
        self._reached = max(self._reached, limit)  # What it names last may not have been wanted.

    async def _of(self, fragment: Fragment, data: bytes) -> pa.Table:
        """Return what is wanted of an object that was walked past."""
        limit = fragment.limit if self._limit is None else min(self._limit, fragment.limit)
        start, self._reached = self._reached, limit
        if not self._selection.may_be_in(fragment):
            return _NOTHING
        records = await self._reader.clock.offload(partial(checked_data, data, fragment))
        return self._selection.of(records_between(records, fragment, start, limit))


async def scan_pinned(
    store: Store, clock: Clock, pin: Pin, *, selection: Selection = ALL
) -> AsyncIterator[pa.Table]:
    """Yield the records that a pin holds, in order.

    Raises:
        CorruptionError: an object is missing, or is not what was written.
    """
    reader = SlotReader(store=store, clock=clock).tree
    begun = await reader.manifest()
    held = replace(begun, snapshots=pin.snapshots, fragments=pin.fragments, initial_offset=None)
    async for records in reader.scan_of(held, pin.start, limit=pin.limit):
        if (selected := selection.of(records)).num_rows:
            yield selected


def checked_data(data: bytes, fragment: Fragment) -> pa.Table:
    """Return the records of a slot's object.

    Raises:
        CorruptionError: it cannot be read, or they are not what the log says.
    """
    link, records = decode_data(data, path=fragment.path)
    if problems := problems_of_data(records, link, len(data), fragment):
        raise CorruptionError(
            f"a slot's object is not what was written ({'; '.join(problems)}): restore it",
            path=fragment.path,
        )
    return records


def _seal_of(manifest: Manifest) -> Seal | None:
    return None if manifest.chain is None else manifest.chain.seal
