"""The reader of a log's records: fragments in order, fetched and checked ahead of the caller.

One reader serves both protocols, which differ in the codec that turns bytes into records. Objects
are fetched concurrently, whatever lanes they are in, and threads decode and check them. Records
come in the order of positions. A reader that meets a concurrent collection goes on from the newer
manifest, or reports that its records were collected.
Source: wal3, "Read Path"; design page 3, "Read".
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from tidelog.core.lookahead import AT_ONCE_MAX, BYTES_MAX, in_order
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.read.head import TreeReader, collected, load_past, read_again
from tidelog.wal.read.limits import Limits, ReadUsage, spend

# Returns the verified records of an object's bytes; each protocol has its own.
Codec: TypeAlias = Callable[[bytes, Fragment], pa.Table]
_NEWEST_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Leaf:
    """A fragment to read; with its bytes, if they are read already."""

    fragment: Fragment
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """A reader of the records of a tree.

    Units:
        window_bytes: bytes of fragments that are read ahead, approximately.
    """

    tree: TreeReader
    codec: Codec
    window_bytes: int = BYTES_MAX

    async def fetch(self, fragment: Fragment) -> pa.Table:
        """Read and verify the records of a fragment.

        Raises:
            ObjectNotFound: the fragment does not exist.
            CorruptionError: the fragment is changed.
        """
        return await self._records(Leaf(fragment), ScanPace())

    async def scan(
        self,
        manifest: Manifest,
        start: int = 0,
        *,
        limit: int | None = None,
        wanted: Callable[[Fragment], bool] | None = None,
    ) -> AsyncGenerator[tuple[int, pa.Table], None]:
        """Yield the records of the positions ``[start, limit)`` that a manifest names.

        Fragments that are not ``wanted`` are not read.

        Shape: the position after the last record, and a table with records of one fragment. Start 0
        is the oldest retained record.

        Raises:
            PositionCollected: records at or after ``start`` were collected, before or during the
            read.
            CorruptionError: an object is missing or changed.
        """
        reached = start or manifest.oldest
        limit = manifest.next if limit is None else min(limit, manifest.next)
        while reached < limit:
            if reached < manifest.oldest:
                raise collected(reached, manifest.oldest)
            try:
                leaves = self._leaves(manifest, reached, limit, wanted)
                async with aclosing(self.read(leaves)) as read:
                    async for fragment, records in read:
                        part = records_between(records, fragment, reached, limit)
                        reached = min(fragment.limit, limit)
                        yield reached, part
                return
            except (ObjectNotFound, CorruptionError) as error:
                # If a collection went past, continue with the rest. A late writer may even have put
                # another object into a collected fragment's place, hence CorruptionError.
                manifest = await load_past(self.tree.store, manifest, error)

    async def read(
        self, leaves: AsyncGenerator[Leaf, None]
    ) -> AsyncGenerator[tuple[Fragment, pa.Table], None]:
        """Read fragments in the order of their source, some of them ahead; see `fetch`."""
        pace = ScanPace()
        found = in_order(
            leaves,
            partial(self._records, pace=pace),
            size_of=lambda leaf: leaf.fragment.num_bytes,
            at_once=self.tree.reads,
            bytes_max=self.window_bytes,
            wanted=pace.wanted,
        )
        async with aclosing(found):
            async for leaf, records in found:
                yield leaf.fragment, records

    async def _records(self, leaf: Leaf, pace: ScanPace) -> pa.Table:
        if leaf.data is not None:  # Decoding the same bytes again would not help.
            return await self._records_once(leaf, pace)
        return await read_again(partial(self._records_once, leaf, pace))

    async def _records_once(self, leaf: Leaf, pace: ScanPace) -> pa.Table:
        clock, data = self.tree.clock, leaf.data
        begun_us = clock.monotonic_us()
        if data is None:
            data = (await self.tree.store.get(leaf.fragment.path)).data
        fetched_us = clock.monotonic_us()
        records = await clock.offload(partial(self.codec, data, leaf.fragment))
        pace.note(fetch_us=fetched_us - begun_us, check_us=clock.monotonic_us() - fetched_us)
        return records

    async def _leaves(
        self,
        manifest: Manifest,
        reached: int,
        limit: int,
        wanted: Callable[[Fragment], bool] | None,
    ) -> AsyncGenerator[Leaf, None]:
        """Yield the wanted fragments; all fragments must be contiguous, wanted or not."""
        number: int | None = None
        async with aclosing(self.tree.leaves(manifest.children, reached, limit)) as found:
            async for fragment in found:
                if fragment.start > reached:
                    raise _gap(reached, fragment.start)
                if number is not None and fragment.seq_no != number + 1:
                    raise CorruptionError(
                        "the log's fragment numbers are not contiguous: scrub the log, and "
                        "restore the objects that the scrub names",
                        path=fragment.path,
                        expected=number + 1,
                    )
                reached, number = fragment.limit, fragment.seq_no
                if wanted is None or wanted(fragment):
                    yield Leaf(fragment)
        if reached < limit:
            raise _gap(reached, limit)


async def limited(
    tables: AsyncGenerator[pa.Table, None], limits: Limits
) -> AsyncGenerator[pa.Table, None]:
    """Yield tables of one fragment each, as far as limits allow, and request no more of them."""
    spent = ReadUsage()
    async with aclosing(tables):
        async for records in tables:
            kept, spent, is_done = spend(limits, spent, records)
            if kept.num_rows:
                yield kept
            if is_done:
                return


def records_between(records: pa.Table, fragment: Fragment, start: int, limit: int) -> pa.Table:
    """Return a fragment's records with the positions ``[start, limit)``."""
    if start <= fragment.start and fragment.limit <= limit:
        return records
    first = max(0, start - fragment.start)
    return records.slice(first, min(limit, fragment.limit) - fragment.start - first)


def _gap(reached: int, found: int) -> CorruptionError:
    return CorruptionError(
        f"the log has no fragment with the positions {reached} to {found - 1}: scrub the log, and "
        "restore the objects that the scrub names"
    )


@dataclass(slots=True)
class ScanPace:
    """Moving averages of a scan's times; ``cores`` objects are checked at once.

    They decide how many objects a scan reads ahead: enough to keep the checking threads busy. An
    object that is fetched long before its check takes memory, and has left the processor's caches
    by then. From a local directory, eight objects ahead are half as fast as three. From a slow
    store, eight are not too many.
    """

    cores: int = field(default_factory=pa.cpu_count)
    fetch_us: float | None = None
    check_us: float = 0.0

    def note(self, *, fetch_us: int, check_us: int) -> None:
        """Note the time of an object's fetch, and the time of its check."""
        if self.fetch_us is None:
            self.fetch_us, self.check_us = fetch_us, check_us
        self.fetch_us += _NEWEST_SHARE * (fetch_us - self.fetch_us)
        self.check_us += _NEWEST_SHARE * (check_us - self.check_us)

    def wanted(self) -> int:
        """Return how many objects should be in work, fetched or checked."""
        if self.fetch_us is None:
            return AT_ONCE_MAX
        fetched_meanwhile = math.ceil(self.cores * self.fetch_us / max(self.check_us, 1.0))
        return min(AT_ONCE_MAX, self.cores + max(1, fetched_meanwhile))
