"""A reader of a log in wal3's form. It writes nothing.

Source: wal3, "Read Path"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.core.lookahead import AT_ONCE_MAX, BYTES_MAX
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.wal3_records import checked_fragment
from tidelog.wal.read.head import TreeReader, refuse_slots
from tidelog.wal.read.record_reader import RecordReader


@dataclass(slots=True, kw_only=True)
class Wal3Reader:
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

    def __post_init__(self) -> None:
        self.tree = TreeReader(store=self.store, clock=self.clock, reads=self.reads)
        self.records = RecordReader(
            tree=self.tree, codec=checked_fragment, window_bytes=self.window_bytes
        )

    async def manifest(self, *, checked: bool = True) -> Manifest:
        """Read the manifest; see `TreeReader.manifest`.

        Raises:
            UsageError: the log uses slot commits.
        """
        return refuse_slots(await self.tree.manifest(checked=checked))

    async def fragments(self, *, start: int = 0, limit: int | None = None) -> list[Fragment]:
        """Return the fragments that overlap the positions ``[start, limit)``, in order.

        Raises:
            ObjectNotFound: a snapshot was collected concurrently.
            CorruptionError: the manifest's tree is broken.
        """
        return await self.tree.fragments_of(await self.manifest(), start=start, limit=limit)

    async def scan(
        self, start: int = 0, *, limit: int | None = None
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the positions ``[start, limit)`` that exist now, in order.

        Start 0 is the oldest retained record.

        Shape: tables as in `tidelog.wal.format.wal3_records`, none of them empty.

        Raises:
            PositionCollected: records at or after ``start`` were collected, before or during the
            read.
            CorruptionError: an object is missing or changed.
        """
        found = self.records.scan(await self.manifest(), start, limit=limit)
        async with aclosing(found):
            async for _, records in found:
                yield records
