"""Reading a log's tree: its manifest, and the snapshots below it, as far down as one gets.

The tree is the same in both protocols, and holds no records: see `record_reader` for these. What
is read is checked before it is believed, for it says where to read on.
Source: wal3, "Read Path"; docs/internals/wal3.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from tidelog.clock import Clock, run_all
from tidelog.errors import CorruptionError
from tidelog.lookahead import AT_ONCE_MAX, cancelled
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import (
    Pointer,
    Snapshot,
    decode_snapshot,
    overlaps,
    problems_of_snapshot,
)
from tidelog.wal.read.head import load_head, read_head, refuse_destroyed
from tidelog.wal.read.read_again import read_decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReader:
    """A reader of the tree of the log at the root of ``store``; ``reads`` requests at once."""

    store: Store
    clock: Clock
    reads: int = AT_ONCE_MAX

    async def manifest(self, *, checked: bool = True) -> Manifest:
        """Read the manifest; who is to tell all that is wrong has it not ``checked``.

        Raises:
            NoSuchLog: there is none, or it was destroyed. CorruptionError: it cannot be read, or
            contradicts itself. LocationError: the store failed.
        """
        head = await (load_head if checked else read_head)(self.store)
        return refuse_destroyed(head.manifest, self.store)

    async def snapshot(self, pointer: Pointer) -> Snapshot:
        """Read a snapshot, which must be what the pointer says.

        Raises:
            ObjectNotFound: it is gone. CorruptionError: it is not.
        """
        path = pointer.path
        found = await read_decoded(
            self.store, path, lambda read: decode_snapshot(read.data, where=path)
        )
        if problems := problems_of_snapshot(found, pointer):
            raise CorruptionError(
                f"a snapshot is not what was written ({'; '.join(problems)}): restore it",
                path=pointer.path,
            )
        return found

    async def leaves(
        self, children: Sequence[Pointer | Fragment], start: int = 0, limit: int | None = None
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the fragments below children that hold any of the positions ``[start, limit)``.

        Snapshots are read when their turn comes; the next one of each level while what is below one
        is given. So memory does not follow the size of the log, nor do the requests before the
        first fragment.

        Raises:
            ObjectNotFound: a snapshot is gone: it was collected meanwhile. CorruptionError: the
            tree is not what was written.
        """
        found = [child for child in children if overlaps(child, start, limit)]
        pointers = [child for child in found if isinstance(child, Pointer)]
        following: asyncio.Task[Snapshot] | None = None
        try:
            for pointer, after in pairwise([*pointers, None]):
                assert pointer is not None, "only what comes after the last is none"
                snapshot = await (following or self.snapshot(pointer))
                following = None
                async with aclosing(self.leaves(snapshot.children, start, limit)) as below:
                    async for leaf in below:
                        yield leaf
                        if following is None and after is not None:
                            following = asyncio.create_task(self.snapshot(after))
        finally:
            await cancelled([*filter(None, [following])])
        for child in found:
            if isinstance(child, Fragment):  # Newer than all snapshots beside them.
                yield child

    async def fragments_of(
        self, manifest: Manifest, *, start: int = 0, limit: int | None = None
    ) -> list[Fragment]:
        """Return the fragments of a manifest that hold any of the positions ``[start, limit)``.

        Only snapshots that overlap are read, those of one level side by side.

        Raises:
            ObjectNotFound, CorruptionError: see `leaves`.
        """
        children: Sequence[Pointer | Fragment] = manifest.children
        while True:
            children = [child for child in children if overlaps(child, start, limit)]
            pointers = [child for child in children if isinstance(child, Pointer)]
            if not pointers:
                return [child for child in children if isinstance(child, Fragment)]
            work = [partial(self.snapshot, pointer) for pointer in pointers]
            read = dict(zip(pointers, await run_all(work, at_once=self.reads), strict=True))
            # Each round goes down a level: no snapshot names one that is as deep as itself.
            children = list(_expanded(children, read))


def _expanded(
    children: Sequence[Pointer | Fragment], read: dict[Pointer, Snapshot]
) -> Iterator[Pointer | Fragment]:
    for child in children:
        if isinstance(child, Pointer):
            yield from read[child].children
        else:
            yield child
