"""Reading a log in wal3's form. Nothing is written, and no writer is needed.

Source: wal3, "Read Path"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import pyarrow as pa

from tidelog.clock import Clock
from tidelog.lookahead import AT_ONCE_MAX, BYTES_MAX
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.read.codec import checked_fragment
from tidelog.wal.read.head import refuse_slots
from tidelog.wal.read.record_reader import RecordReader
from tidelog.wal.read.tree_reader import TreeReader


@dataclass(slots=True, kw_only=True)
class Wal3Reader:
    """A reader of the log at the root of ``store``.

    Units: about ``window_bytes`` of fragments, and at most ``reads`` of them, are read ahead.
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
            UsageError: the log is of the other protocol.
        """
        return refuse_slots(await self.tree.manifest(checked=checked))

    async def fragments(self, *, start: int = 0, limit: int | None = None) -> list[Fragment]:
        """Return the fragments that hold any of the positions ``[start, limit)``, in order.

        Raises:
            ObjectNotFound: a snapshot is gone: it was collected meanwhile. CorruptionError: the
            tree is not what was written.
        """
        return await self.tree.fragments_of(await self.manifest(), start=start, limit=limit)

    async def scan(
        self, start: int = 0, *, limit: int | None = None
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the records of the positions ``[start, limit)`` that there are now, in order.

        Shape: tables as `tidelog.wal.format.wal3_records` says, none of them empty. Start 0 is
            the oldest record that is left.

        Raises:
            PositionCollected: records from ``start`` on were collected, maybe meanwhile.
            CorruptionError: an object is missing, or is not what was written.
        """
        found = self.records.scan(await self.manifest(), start, limit=limit)
        async with aclosing(found):
            async for _, records in found:
                yield records
