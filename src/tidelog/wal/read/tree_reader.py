"""Reading a wal3 log: its manifest, the tree of snapshots below it, and its records in order.

Nothing is written, and no writer is needed. A reader that meets a collection under way goes on from
the newer manifest, or says that what it was to read is gone.
Source: wal3, "Read Path"; docs/wal3.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.clock import Clock, run_all
from tidelog.errors import CorruptionError, InvariantError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.cursor import CURSORS, Cursor, cursor_name, decode_cursor
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import (
    Pointer,
    Snapshot,
    decode_snapshot,
    overlaps,
    problems_of_snapshot,
)
from tidelog.wal.format.wal3_records import check_fragment, decode_fragment
from tidelog.wal.read.head import collected, load_head, load_past, refuse_slots
from tidelog.wal.read.limits import Limits, Spent, spend

READS_MAX: Final = 8
WINDOW_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Wal3Reader:
    """A reader of the log at the root of ``store``.

    Units: about ``window_bytes`` of fragments, and at most ``reads`` of them, are read ahead.
    ``decode`` gives a fragment's records, which must be what the log says; see `checked_fragment`.
    """

    store: Store
    clock: Clock
    reads: int = READS_MAX
    window_bytes: int = WINDOW_BYTES
    decode: Callable[[bytes, Fragment], pa.Table] | None = None

    async def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            NoSuchLog: there is none. UsageError: the log is of the other protocol. CorruptionError:
            it cannot be read. LocationError: the store failed.
        """
        manifest = (await load_head(self.store)).manifest
        return refuse_slots(manifest) if self.decode is None else manifest

    async def snapshot(self, pointer: Pointer) -> Snapshot:
        """Read a snapshot, which must be what the pointer says.

        Raises:
            ObjectNotFound: it is gone. CorruptionError: it is not.
        """
        data = (await self.store.get(pointer.path)).data
        found = decode_snapshot(data, where=pointer.path)
        if problems := problems_of_snapshot(found, pointer):
            raise CorruptionError(
                f"a snapshot is not what was written ({'; '.join(problems)}): restore it",
                path=pointer.path,
            )
        return found

    async def fetch(self, fragment: Fragment) -> pa.Table:
        """Read the records of a fragment, which must be those that were written.

        Raises:
            ObjectNotFound: it is gone. CorruptionError: they are not.
        """
        data = (await self.store.get(fragment.path)).data
        return await self.clock.offload(partial(self.decode or checked_fragment, data, fragment))

    async def fragments(self, *, start: int = 0, limit: int | None = None) -> list[Fragment]:
        """Return the fragments that hold any of the positions ``[start, limit)``, in order.

        Only snapshots that overlap are read, those of one level side by side.

        Raises:
            ObjectNotFound: a snapshot is gone: it was collected meanwhile. CorruptionError: the
            tree is not what was written.
        """
        return await self.fragments_of(await self.manifest(), start=start, limit=limit)

    async def scan(
        self, start: int = 0, *, limit: int | None = None, eager: bool = True
    ) -> AsyncIterator[pa.Table]:
        """Yield the records of the positions ``[start, limit)`` that there are now, in order.

        Shape: tables as `tidelog.wal.format.wal3_records` says, none of them empty. Start 0 is
            the oldest record that is left.

        Raises:
            PositionCollected: records from ``start`` on were collected, maybe meanwhile.
            CorruptionError: an object is missing, or is not what was written.
        """
        found = self.scan_of(await self.manifest(), start, limit=limit, eager=eager)
        async for records in found:
            yield records

    async def scan_of(
        self,
        manifest: Manifest,
        start: int = 0,
        *,
        limit: int | None = None,
        wanted: Callable[[Fragment], bool] | None = None,
        eager: bool = True,
    ) -> AsyncIterator[pa.Table]:
        """Yield the records that a manifest names which was read before; see `scan`.

        Fragments that are not ``wanted`` are not read. Who may stop early is not ``eager``: little
        is read ahead at first, and twice as much each time.
        """
        reached = start or manifest.oldest
        limit = manifest.next if limit is None else min(limit, manifest.next)
        while reached < limit:
            if reached < manifest.oldest:
                raise collected(reached, manifest.oldest)
            try:
                pieces = _unbroken(
                    self._pieces(manifest.children, reached, limit, eager=eager), reached, limit
                )
                async for fragment, records in self._fetched(pieces, wanted, eager=eager):
                    yield records_between(records, fragment, reached, limit)
                    reached = fragment.limit
                return
            except (ObjectNotFound, CorruptionError) as error:
                # If a collection went past, go on with what it left. A writer who slept through it
                # may even have put something else where a fragment had been.
                manifest = await load_past(self.store, manifest, error)

    async def cursors(self) -> dict[str, Cursor]:
        """Read all cursors by name; other objects beside them are passed over.

        Raises:
            CorruptionError: one cannot be read.
        """
        names = [
            (name, entry.key)
            async for entry in self.store.list(CURSORS)
            if (name := cursor_name(entry.key)) is not None
        ]
        found: dict[str, Cursor] = {}
        for name, key in names:
            found[name] = decode_cursor((await self.store.get(key)).data, where=key)
        return found

    async def fragments_of(
        self, manifest: Manifest, *, start: int = 0, limit: int | None = None
    ) -> list[Fragment]:
        """Return the fragments of a manifest that was read before; see `fragments`."""
        return await self._leaves(manifest.children, start, limit)

    async def _leaves(
        self, children: Sequence[Pointer | Fragment], start: int, limit: int | None
    ) -> list[Fragment]:
        while True:
            children = [child for child in children if overlaps(child, start, limit)]
            pointers = [child for child in children if isinstance(child, Pointer)]
            if not pointers:
                return [child for child in children if isinstance(child, Fragment)]
            work = [partial(self.snapshot, pointer) for pointer in pointers]
            read = dict(zip(pointers, await run_all(work, at_once=self.reads), strict=True))
            # Each round goes down a level: no snapshot names one that is as deep as itself.
            children = list(_expanded(children, read))

    async def _pieces(
        self, children: Sequence[Pointer | Fragment], start: int, limit: int, *, eager: bool
    ) -> AsyncIterator[list[Fragment]]:
        """Yield the fragments below children: all at once, or by snapshot in turn."""
        if eager:
            yield await self._leaves(children, start, limit)
            return
        leaves: list[Fragment] = []
        for child in [child for child in children if overlaps(child, start, limit)]:
            if isinstance(child, Fragment):
                leaves.append(child)
                continue
            below = (await self.snapshot(child)).children
            async for piece in self._pieces(below, start, limit, eager=False):
                yield piece
        yield leaves  # Newer than all snapshots beside them.

    async def _fetched(
        self,
        pieces: AsyncIterator[list[Fragment]],
        wanted: Callable[[Fragment], bool] | None,
        *,
        eager: bool,
    ) -> AsyncIterator[tuple[Fragment, pa.Table]]:
        """Read fragments in order, several at once."""
        async for piece in pieces:
            found = piece if wanted is None else [one for one in piece if wanted(one)]
            for window in self._windows(found, first=self.reads if eager else 1):
                work = [partial(self.fetch, fragment) for fragment in window]
                read = await run_all(work, at_once=self.reads)
                for fragment, records in zip(window, read, strict=True):
                    yield fragment, records

    def _windows(self, fragments: Sequence[Fragment], *, first: int) -> Iterator[list[Fragment]]:
        window: list[Fragment] = []
        count = min(first, self.reads)
        for fragment in fragments:
            size = sum(f.num_bytes for f in window) + fragment.num_bytes
            if window and (len(window) == count or size > self.window_bytes):
                yield window
                window, count = [], min(2 * count, self.reads)
            window.append(fragment)
        if window:
            yield window


async def limited(tables: AsyncIterator[pa.Table], limits: Limits) -> AsyncIterator[pa.Table]:
    """Yield tables, each of one fragment, as far as limits allow; no more of them are asked for."""
    spent = Spent()
    async for records in tables:
        kept, spent, is_done = spend(limits, spent, records)
        if kept.num_rows:
            yield kept
        if is_done:
            return


def tree_reader(store: Store, clock: Clock) -> Wal3Reader:
    """Return a reader of the manifest and the snapshots of a log of either protocol, no records."""
    return Wal3Reader(store=store, clock=clock, decode=_no_records)


def _no_records(_: bytes, fragment: Fragment) -> pa.Table:
    raise InvariantError("whoever reads a log's tree alone reads no records", path=fragment.path)


def checked_fragment(data: bytes, fragment: Fragment) -> pa.Table:
    """Return the records of a fragment of wal3's.

    Raises:
        CorruptionError: they are not what the log says.
    """
    records = decode_fragment(data, path=fragment.path)
    check_fragment(records, len(data), fragment)
    return records


async def _unbroken(
    pieces: AsyncIterator[list[Fragment]], reached: int, limit: int
) -> AsyncIterator[list[Fragment]]:
    """Yield fragments, which must follow each other, whatever of them is read."""
    async for piece in pieces:
        for fragment in piece:
            if fragment.start > reached:
                raise _gap(reached, fragment.start)
            reached = fragment.limit
        yield piece
    if reached < limit:
        raise _gap(reached, limit)


def _gap(reached: int, found: int) -> CorruptionError:
    return CorruptionError(
        f"the log names no fragment with the positions {reached} to {found - 1}: restore it"
    )


def _expanded(
    children: Sequence[Pointer | Fragment], read: dict[Pointer, Snapshot]
) -> Iterator[Pointer | Fragment]:
    for child in children:
        if isinstance(child, Pointer):
            yield from read[child].children
        else:
            yield child


def records_between(records: pa.Table, fragment: Fragment, start: int, limit: int) -> pa.Table:
    """Return those of a fragment's records that have the positions ``[start, limit)``."""
    first = max(0, start - fragment.start)
    return records.slice(first, min(limit, fragment.limit) - fragment.start - first)
