"""Reading a slot log: what its manifest names, then slot by slot to the end.

A missing slot is taken for the end only if the manifest, read after the miss, has not gone past it:
the slot may be missing because it was collected.
Source: wal3-draft, "Reading"; design page 3, "Read".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.clock import Clock
from tidelog.errors import CorruptionError
from tidelog.store.port import Store
from tidelog.wal.epoch import Seal
from tidelog.wal.link import Tail
from tidelog.wal.manifest import Fragment, Manifest
from tidelog.wal.pin import Pin
from tidelog.wal.reader import READS_MAX, WINDOW_BYTES, Wal3Reader, records_between
from tidelog.wal.slot import decode_data, problems_of_data
from tidelog.wal.walk import tail_of
from tidelog.wal.walker import Walker

POLL_FIRST_US: Final = 10_000
POLL_MOST_US: Final = 1_000_000
MANIFEST_EVERY_US: Final = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The log has the positions ``[oldest, next)``; ``seal`` says whether that is all for ever."""

    oldest: int
    next: int
    seal: Seal | None


@dataclass(slots=True, kw_only=True)
class SlotReader:
    """A reader of the log at the root of ``store``; see `Wal3Reader` for its limits."""

    store: Store
    clock: Clock
    reads: int = READS_MAX
    window_bytes: int = WINDOW_BYTES
    tree: Wal3Reader = field(init=False)
    _walker: Walker = field(init=False)

    def __post_init__(self) -> None:
        self.tree = Wal3Reader(
            store=self.store,
            clock=self.clock,
            reads=self.reads,
            window_bytes=self.window_bytes,
            decode=checked_data,
        )
        self._walker = Walker(store=self.store, clock=self.clock, reads=self.reads)

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
        """Give the oldest position that is left, and the next one to come."""
        manifest = await self.manifest()
        while True:
            tail, seal = tail_of(manifest), _seal_of(manifest)
            async for passed in self._walker.walk(tail):
                tail = passed.tail
                seal = passed.step if isinstance(passed.step, Seal) else None
            manifest = await self.manifest()
            if manifest.next <= tail.position:
                return Bounds(oldest=manifest.oldest, next=tail.position, seal=seal)

    async def scan(self, start: int = 0, *, limit: int | None = None) -> AsyncIterator[pa.Table]:
        """Give the records of the positions ``[start, limit)`` that there are now, in order.

        Shape: tables as `tidelog.wal.slot` says, none of them empty. Start 0 is the oldest record
            that is left.

        Raises:
            PositionCollected: records from ``start`` on were collected, maybe meanwhile.
            CorruptionError: an object is missing, or is not what was written.
        """
        manifest = await self.manifest()
        reading = _Reading(self, manifest, start or manifest.oldest, limit)
        while True:
            async for records in reading.go():
                yield records
            if reading.is_done() or not reading.renew(await self.manifest()):
                return

    async def follow(self, start: int = 0) -> AsyncIterator[pa.Table]:
        """Give records as `scan` does, and those to come as they come, until the log is sealed.

        An idle log is asked for its next slot, ever more seldom, and now and then for its manifest.
        """
        manifest = await self.manifest()
        reading = _Reading(self, manifest, start or manifest.oldest, None)
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
    """Where a read stands: the next position, and the tail of what was walked."""

    def __init__(
        self, reader: SlotReader, manifest: Manifest, start: int, limit: int | None
    ) -> None:
        self._reader = reader
        self._manifest: Manifest | None = manifest
        self._tail: Tail = tail_of(manifest)
        self._reached = start
        self._limit = limit
        self._seal = _seal_of(manifest)

    def is_done(self) -> bool:
        """Say whether nothing more can come."""
        if self._limit is not None and self._reached >= self._limit:
            return True
        return self._seal is not None and self._manifest is None

    def renew(self, manifest: Manifest) -> bool:
        """Go on from a newer manifest, if it has gone past what was walked."""
        if manifest.next <= self._tail.position:
            return False
        self._manifest, self._tail, self._seal = manifest, tail_of(manifest), _seal_of(manifest)
        return True

    async def go(self) -> AsyncIterator[pa.Table]:
        """Read what the manifest names, if that was not read, and on to the first missing slot."""
        if self._manifest is not None:
            found = self._reader.tree.scan_of(self._manifest, self._reached, limit=self._limit)
            async for records in found:
                self._reached += records.num_rows
                yield records
            self._manifest = None
        if self.is_done():
            return
        async for passed in self._reader._walker.walk(self._tail):
            self._tail = passed.tail
            if isinstance(passed.step, Seal):
                self._seal = passed.step
            if not isinstance(passed.step, Fragment) or passed.step.limit <= self._reached:
                continue
            records = await self._reader.clock.offload(
                partial(checked_data, passed.data, passed.step)
            )
            limit = passed.step.limit if self._limit is None else self._limit
            records = records_between(records, passed.step, self._reached, limit)
            self._reached += records.num_rows
            yield records
            if self.is_done():
                return


async def scan_pinned(store: Store, clock: Clock, pin: Pin) -> AsyncIterator[pa.Table]:
    """Give the records that a pin holds, in order.

    Raises:
        CorruptionError: an object is missing, or is not what was written.
    """
    reader = SlotReader(store=store, clock=clock).tree
    begun = await reader.manifest()
    held = replace(begun, snapshots=pin.snapshots, fragments=pin.fragments, initial_offset=None)
    async for records in reader.scan_of(held, pin.start, limit=pin.limit):
        yield records


def checked_data(data: bytes, fragment: Fragment) -> pa.Table:
    """Give the records of a slot's object.

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
