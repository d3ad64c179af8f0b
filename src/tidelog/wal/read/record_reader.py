"""Reading a log's records: fragments of a tree in order, fetched and checked ahead of the reader.

One reader serves both protocols; they differ in the tree's depth of knowledge and in the codec, by
which bytes become records. Objects are fetched side by side, whatever lanes they lie in, and
threads decode and check them; records come in the order of positions. A reader that meets a
collection under way goes on from the newer manifest, or says that what it was to read is gone.
Source: wal3, "Read Path"; design page 3, "Read".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.lookahead import BYTES_MAX, in_order
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.read.codec import Codec
from tidelog.wal.read.head import collected, load_past
from tidelog.wal.read.limits import Limits, Spent, spend
from tidelog.wal.read.pace import ScanPace
from tidelog.wal.read.read_again import read_again
from tidelog.wal.read.tree_reader import TreeReader


@dataclass(frozen=True, slots=True)
class Leaf:
    """A fragment to be read; with its bytes, where these are there already."""

    fragment: Fragment
    data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """A reader of the records of a tree.

    Units: about ``window_bytes`` of fragments are read ahead.
    """

    tree: TreeReader
    codec: Codec
    window_bytes: int = BYTES_MAX

    async def fetch(self, fragment: Fragment) -> pa.Table:
        """Read the records of a fragment, which must be those that were written.

        Raises:
            ObjectNotFound: it is gone. CorruptionError: they are not.
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

        Shape: the position after the last one, and a table with records of one fragment. Start 0 is
            the oldest record that is left.

        Raises:
            PositionCollected: records from ``start`` on were collected, maybe meanwhile.
            CorruptionError: an object is missing, or is not what was written.
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
                # If a collection went past, go on with what it left. A writer who slept through it
                # may even have put something else where a fragment had been.
                manifest = await load_past(self.tree.store, manifest, error)

    async def read(
        self, leaves: AsyncGenerator[Leaf, None]
    ) -> AsyncGenerator[tuple[Fragment, pa.Table], None]:
        """Read fragments as their source gives them, some ahead; see `fetch`."""
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
        if leaf.data is not None:  # The same bytes decode no better the next time.
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
        """Yield what is to be read; fragments must follow each other, whatever of them is read."""
        number: int | None = None
        async with aclosing(self.tree.leaves(manifest.children, reached, limit)) as found:
            async for fragment in found:
                if fragment.start > reached:
                    raise _gap(reached, fragment.start)
                if number is not None and fragment.seq_no != number + 1:
                    raise CorruptionError(
                        "the numbers of the log's fragments do not follow each other: restore it",
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
    """Yield tables, each of one fragment, as far as limits allow; no more of them are asked for."""
    spent = Spent()
    async with aclosing(tables):
        async for records in tables:
            kept, spent, is_done = spend(limits, spent, records)
            if kept.num_rows:
                yield kept
            if is_done:
                return


def records_between(records: pa.Table, fragment: Fragment, start: int, limit: int) -> pa.Table:
    """Return those of a fragment's records that have the positions ``[start, limit)``."""
    if start <= fragment.start and fragment.limit <= limit:
        return records
    first = max(0, start - fragment.start)
    return records.slice(first, min(limit, fragment.limit) - fragment.start - first)


def _gap(reached: int, found: int) -> CorruptionError:
    return CorruptionError(
        f"the log names no fragment with the positions {reached} to {found - 1}: restore it"
    )
