"""Parts in a store that records its requests, and a plain oracle of their contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from kit.clocks import OneThread
from tidelog.keyed.format.part import EncodedPart, RunPart
from tidelog.keyed.format.part_file import RunPartWriter
from tidelog.keyed.format.records import KEYED_RECORDS, sort_records
from tidelog.keyed.read.part_reader import RunPartReader
from tidelog.keyed.read.run_objects import DirectoryCache
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore

EVER = 2**63 - 1
Record = tuple[bytes, int, int, bytes]  # Key, sequence, time, value.


def table_of(records: Sequence[Record]) -> pa.Table:
    columns = [[record[place] for record in records] for place in range(4)]
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, KEYED_RECORDS, strict=True)],
        schema=KEYED_RECORDS,
    )


def rows_of(table: pa.Table) -> list[Record]:
    assert table.schema == KEYED_RECORDS
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def encoded(
    records: Sequence[Record], *, path: str = "run/a.parquet", page_rows: int | None = None
) -> EncodedPart:
    writer = RunPartWriter(path, page_rows=page_rows)
    writer.write(sort_records(table_of(records)))
    return writer.finish()


@dataclass
class Parts:
    """A store of parts, and a reader whose cache is its own."""

    inner: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.store = RecordedStore(self.inner)
        self.reader = RunPartReader(self.store, OneThread(), DirectoryCache())

    async def put(self, made: EncodedPart) -> RunPart:
        await self.inner.put(made.part.path, made.data)
        await self.inner.put(made.part.directory, made.directory)
        return made.part

    def cold(self, cache: DirectoryCache) -> RunPartReader:
        """Return a reader that has read nothing yet."""
        return RunPartReader(self.store, OneThread(), cache)

    def asked(self) -> list[tuple[str, int]]:
        """Return the objects asked for since the last call, with the bytes of each answer."""
        found = [(record.key, record.size) for record in self.store.records]
        self.store.records.clear()
        return found
