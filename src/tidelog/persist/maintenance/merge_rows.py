"""The rows of a merge: many parts in, one run of parts out, in bounded memory.

If the shard has no key and all diffs are 1, rows are copied as written, part after part. Otherwise
equal rows are consolidated, in key order: all at once if the parts are small, otherwise by ranges
of the first column (`merge_ranges`). SQL consolidates only the rows whose key repeats. If ranges
would be large, parts are copied to files on this machine, and DuckDB consolidates all of them with
spilling.
Source: persist, "Compaction".
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import Clock, run_all
from tidelog.core.grouping import groups_by_size
from tidelog.core.temporary import temporary_files
from tidelog.errors import CorruptionError
from tidelog.persist.format.bounds import (
    can_sort,
    in_few_chunks,
    in_key_order,
    joined_in_order,
    sorted_by_key,
)
from tidelog.persist.format.duck import duck, quoted, sums_told
from tidelog.persist.format.part import Part, int64_array, int64_of, sums_of
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, fitted
from tidelog.persist.format.updates import is_sortable
from tidelog.persist.maintenance.merge_ranges import RangeMerger, can_range
from tidelog.persist.maintenance.merging import MergeRequest
from tidelog.persist.read.reader import PartReader
from tidelog.persist.read.sql_batches import tables_of
from tidelog.persist.write.streaming import gathered
from tidelog.rowhash import RowSum

if TYPE_CHECKING:
    import duckdb
    import pyarrow.dataset as pads

# The stored bytes of parts; decoded they are several times as large.
IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
LOADED_BYTES: Final = 4 * 1024 * 1024
BATCH_ROWS: Final = 65_536
Database = Callable[[], "AbstractContextManager[duckdb.DuckDBPyConnection]"]


@dataclass(slots=True, kw_only=True)
class RowMerger:
    """Merges the rows of a shard's parts, in the columns of ``schema``, the newest schema.

    A part of an earlier schema is summed twice: as written, which must equal its descriptor, and in
    the newest schema, which the merged rows must equal. ``restated`` is the resulting change of V
    over all parts read. Updates that a request drops also change V; ``expired`` is the sum of their
    diffs.
    Units: each table has about ``out_bytes`` of Arrow data.
    """

    schema: ShardSchema
    reader: PartReader
    out_bytes: int
    restated: RowSum = field(init=False, default_factory=RowSum.zero)
    expired: int = field(init=False, default=0)
    _request: MergeRequest | None = field(init=False, default=None)

    async def merge(
        self, request: MergeRequest, parts: Sequence[Part]
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield the updates of some parts with times advanced, without updates that cancel.

        No update of another part of the request may cancel one of these.

        Raises:
            CorruptionError: a part is missing, or was changed. LocationError: the store failed.
        """
        self._request = request
        if is_plain(self.schema, parts):
            rows = self.joined(parts, request.advanced_to)
        else:
            rows = self._summed(parts, request)
        async with aclosing(rows) as tables:
            async for table in tables:
                yield table

    async def joined(self, parts: Sequence[Part], time: int) -> AsyncGenerator[pa.Table, None]:
        """Yield the updates of parts in which no update cancels another; see `is_plain`."""

        async def loaded() -> AsyncGenerator[pa.Table, None]:
            for some in groups_by_size(parts, lambda part: part.size_bytes, most=LOADED_BYTES):
                joined = in_few_chunks(pa.concat_tables(await self._load_all(some)))
                yield _advanced(joined, self.schema, time)

        async with aclosing(self._gathered(loaded())) as tables:
            async for table in tables:
                yield table

    async def _summed(
        self, parts: Sequence[Part], request: MergeRequest
    ) -> AsyncGenerator[pa.Table, None]:
        sum_up = partial(consolidated, schema=self.schema, advanced_to=request.advanced_to)
        if sum(part.size_bytes for part in parts) <= IN_MEMORY_BYTES:
            found = await self._load_all(parts)
            yield await self.reader.clock.offload(partial(sum_up, found))
            return
        # Ranges read parts directly, not by `load`, so they would not drop expired updates.
        if can_range(self.schema) and request.is_expired is None:
            restated = self.restated
            ranges = RangeMerger(
                schema=self.schema, reader=self.reader, load=self.load, sum_up=sum_up
            )
            if await ranges.open_all(parts):
                async with aclosing(self._gathered(ranges.merged(parts))) as merged:
                    async for table in merged:
                        yield table
                return
            self.restated = restated  # The parts are read and counted again below.
        async with self._in_files(parts) as rows:
            made = summed(
                rows,
                schema=self.schema,
                advanced_to=request.advanced_to,
                clock=self.reader.clock,
                out_bytes=self.out_bytes,
            )
            async with aclosing(made) as tables:
                async for table in tables:
                    yield table

    def _gathered(self, tables: AsyncGenerator[pa.Table, None]) -> AsyncGenerator[pa.Table, None]:
        return gathered(tables, self.out_bytes, self.reader.clock)

    async def load(self, part: Part) -> pa.Table:
        """Read a part in the newest schema.

        Raises:
            CorruptionError: the part is missing, or was changed. LocationError: the store failed.
        """
        own = self.schema.of_part(part.schema_id)
        (table,) = await self.reader.read([part], own)
        if self._request is not None and self._request.is_expired is not None:
            work = partial(_without_expired, table, own, self._request)
            table, sum_v, diffs = await self.reader.clock.offload(work)
            self.restated, self.expired = self.restated - sum_v, self.expired + diffs
        if own.data.equals(self.schema.data):
            return table
        now = fitted(table, self.schema.updates.names, self.schema.updates)

        def sums() -> tuple[RowSum, RowSum]:
            return sums_of(table, own)[0], sums_of(now, self.schema)[0]

        as_written, as_now = await self.reader.clock.offload(sums)
        if as_written != part.v:
            raise CorruptionError(
                "a part's rows differ from its descriptor: restore the object",
                path=part.path or "inline",
            )
        self.restated = self.restated + as_now - as_written
        return now

    async def _load_all(self, parts: Sequence[Part]) -> list[pa.Table]:
        data, request = self.schema.data, self._request
        is_current = all(self.schema.of_part(p.schema_id).data.equals(data) for p in parts)
        if is_current and (request is None or request.is_expired is None):
            return await self.reader.read(parts, self.schema)
        work = [partial(self.load, part) for part in parts]
        return await run_all(work, at_once=self.reader.reads)

    @asynccontextmanager
    async def _in_files(self, parts: Sequence[Part]) -> AsyncGenerator[pads.Dataset, None]:
        with tempfile.TemporaryDirectory(prefix="tidelog-merge-") as folder:
            files = [await self._copied(p, Path(folder, f"{n}")) for n, p in enumerate(parts)]
            # Only a merge on disk needs this module, which loads pandas if it is installed.
            from pyarrow.dataset import dataset

            yield dataset(files, schema=self.schema.updates, format="ipc")

    async def _copied(self, part: Part, path: Path) -> str:
        """Copy a part to a file after reading and checking it; return the path."""
        table = await self.load(part)

        def write() -> None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            new = pa.ipc.new_file
            with temporary_files(), new(str(path), self.schema.updates, options=options) as sink:
                sink.write_table(table, max_chunksize=BATCH_ROWS)

        await self.reader.clock.offload(write)
        return str(path)


def is_plain(schema: ShardSchema, parts: Sequence[Part]) -> bool:
    """Return True if the descriptors of the parts prove that no update cancels another."""
    return not schema.key_columns and all(part.plain for part in parts)


def _without_expired(
    table: pa.Table, schema: ShardSchema, request: MergeRequest
) -> tuple[pa.Table, RowSum, int]:
    """Return the updates that have not expired; and V and the sum of diffs of the others."""
    if request.is_expired is None:
        return table, RowSum.zero(), 0
    expired = request.is_expired(table, request.since)
    old = table.filter(pa.array(expired))
    return table.filter(pa.array(~expired)), sums_of(old, schema)[0], int(int64_of(old, DIFF).sum())


async def summed(
    rows: pa.Table | pads.Dataset,
    *,
    schema: ShardSchema,
    advanced_to: int,
    clock: Clock,
    out_bytes: int,
    database: Database = duck,
) -> AsyncGenerator[pa.Table, None]:
    """Yield updates in order, with times advanced, without updates that cancel; see `RowMerger`."""
    work = partial(_sum_up, rows, schema=schema, advanced_to=advanced_to, database=database)
    made = tables_of(work, clock=clock, out_bytes=out_bytes, schema=schema.updates)
    async with aclosing(made) as tables:
        async for table in tables:
            yield table


def _advanced(table: pa.Table, schema: ShardSchema, time: int) -> pa.Table:
    """Return the updates with times before ``time`` advanced to it."""
    if not table.num_rows or pc.min(table.column(TIME)).as_py() >= time:
        return table
    times = int64_array(np.maximum(int64_of(table, TIME), time))
    return table.set_column(table.schema.get_field_index(TIME), schema.updates.field(TIME), times)


def consolidated(tables: Sequence[pa.Table], *, schema: ShardSchema, advanced_to: int) -> pa.Table:
    """Return the updates of a few tables, sorted, with times advanced, without updates that cancel.

    An update whose key occurs once can neither cancel another nor equal it.
    """
    filled = [table for table in tables if table.num_rows]
    is_known = is_sortable(schema) and can_sort(filled, schema.key)
    in_order = joined_in_order(filled, schema.key) if is_known else None
    if in_order is not None:
        return _advanced(in_order, schema, advanced_to)
    joined = in_few_chunks(pa.concat_tables([schema.updates.empty_table(), *filled]))
    if not is_known:
        return _summed_by_sql(joined, schema, advanced_to)
    single, others = sorted_by_key(joined, schema.key)
    if not others.num_rows:
        return _advanced(single, schema, advanced_to)
    others = _summed_by_sql(others, schema, advanced_to)
    return in_key_order([_advanced(single, schema, advanced_to), others], schema.key)


def _summed_by_sql(rows: pa.Table, schema: ShardSchema, advanced_to: int) -> pa.Table:
    with _sum_up(rows, schema=schema, advanced_to=advanced_to, database=duck) as batches:
        found = list(batches)
        made = pa.Table.from_batches(found) if found else schema.updates.empty_table()
        return made.cast(schema.updates)


@contextmanager
def _sum_up(
    rows: pa.Table | pads.Dataset, *, schema: ShardSchema, advanced_to: int, database: Database
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Consolidate rows with DuckDB; batches are computed on demand."""
    names = ", ".join(quoted(name) for name in schema.names)
    order = f"ORDER BY {names}, {TIME}" if is_sortable(schema) else ""
    sql = (
        f"SELECT {names}, {TIME}, sum({DIFF})::BIGINT AS {DIFF} FROM "
        f"(SELECT {names}, greatest({TIME}, {advanced_to})::BIGINT AS {TIME}, {DIFF} FROM updates) "
        f"GROUP BY {names}, {TIME} HAVING sum({DIFF}) <> 0 {order}"
    )
    with database() as connection, sums_told():
        connection.register("updates", rows)
        yield iter(connection.sql(sql).to_arrow_reader(BATCH_ROWS))
