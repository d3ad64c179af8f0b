"""The reader of a log's tree: its manifest, and the snapshots below it.

The tree is the same in both protocols, and holds no records; `record_reader` reads those. Each
object is checked before use, because it determines the next reads.
Source: wal3, "Read Path"; docs/internals/wal3.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from tidelog.core.clock import Clock, run_all
from tidelog.core.lookahead import AT_ONCE_MAX, cancelled
from tidelog.errors import CorruptionError
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
    """A reader of the tree of the log at the root of ``store``, with ``reads`` requests at once."""

    store: Store
    clock: Clock
    reads: int = AT_ONCE_MAX

    async def manifest(self, *, checked: bool = True) -> Manifest:
        """Read the manifest. With ``checked=False``, return it even if it contradicts itself.

        Raises:
            NoSuchLog: the log does not exist or was dropped.
            CorruptionError: the manifest cannot be read, or contradicts itself.
            LocationError: the store failed.
        """
        head = await (load_head if checked else read_head)(self.store)
        return refuse_destroyed(head.manifest, self.store)

    async def snapshot(self, pointer: Pointer) -> Snapshot:
        """Read a snapshot, and check it against its pointer.

        Raises:
            ObjectNotFound: the snapshot does not exist.
            CorruptionError: the snapshot differs from its pointer.
        """
        path = pointer.path
        found = await read_decoded(
            self.store, path, lambda read: decode_snapshot(read.data, where=path)
        )
        if problems := problems_of_snapshot(found, pointer):
            raise CorruptionError(
                f"a snapshot differs from its pointer ({'; '.join(problems)}): restore it",
                path=pointer.path,
            )
        return found

    async def leaves(
        self, children: Sequence[Pointer | Fragment], start: int = 0, limit: int | None = None
    ) -> AsyncGenerator[Fragment, None]:
        """Yield the fragments below ``children`` that overlap the positions ``[start, limit)``.

        A snapshot is read when its turn comes. On each level, the next snapshot is read while the
        fragments below the current one are yielded. So memory, and the requests before the first
        fragment, do not grow with the size of the log.

        Raises:
            ObjectNotFound: a snapshot was collected concurrently.
            CorruptionError: the tree is broken.
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
            # The fragments are newer than all snapshots of the same parent.
            if isinstance(child, Fragment):
                yield child

    async def fragments_of(
        self, manifest: Manifest, *, start: int = 0, limit: int | None = None
    ) -> list[Fragment]:
        """Return a manifest's fragments that overlap the positions ``[start, limit)``.

        Only overlapping snapshots are read, those of one level concurrently.

        Raises:
            ObjectNotFound: see `leaves`.
            CorruptionError: see `leaves`.
        """
        children: Sequence[Pointer | Fragment] = manifest.children
        while True:
            children = [child for child in children if overlaps(child, start, limit)]
            pointers = [child for child in children if isinstance(child, Pointer)]
            if not pointers:
                return [child for child in children if isinstance(child, Fragment)]
            work = [partial(self.snapshot, pointer) for pointer in pointers]
            read = dict(zip(pointers, await run_all(work, at_once=self.reads), strict=True))
            # Each round goes down a level, because a snapshot names only less deep ones.
            children = list(_expanded(children, read))


def _expanded(
    children: Sequence[Pointer | Fragment], read: dict[Pointer, Snapshot]
) -> Iterator[Pointer | Fragment]:
    for child in children:
        if isinstance(child, Pointer):
            yield from read[child].children
        else:
            yield child
