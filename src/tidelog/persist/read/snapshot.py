"""Snapshots: the contents of a shard at one time, as parts that are not read yet.

Source: persist, "Snapshot".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from tidelog.core.arguments import check_kind, check_whole
from tidelog.core.frames import duckdb_relation, pandas_frame, polars_frame
from tidelog.core.ids import ShardId
from tidelog.errors import PartMissing, UsageError
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import accumulate, sum_up
from tidelog.persist.read.by_spark import spark_room
from tidelog.persist.read.contents import (
    IN_MEMORY_BYTES,
    ContentsReader,
    Way,
    choose_way,
    divided,
)
from tidelog.persist.read.reader import PartReader
from tidelog.persist.read.rereading import READS_MAX, overtaken, reread
from tidelog.persist.read.selection import CheckedSelection, check_rows_count, each_row
from tidelog.persist.read.spilled_rows import MEMORY_BYTES
from tidelog.persist.read.splits import Split, plan_splits
from tidelog.persist.states.state import State

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
BATCH_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """The contents at ``as_of``, not read yet, in the rows and columns of ``selection``.

    ``again`` plans the same snapshot from the newest state, after a part was missing. ``held`` does
    so too, and holds the snapshot for a number of microseconds and a purpose; it also returns the
    end of the hold.
    """

    shard: ShardId
    schema: ShardSchema
    as_of: int
    parts: tuple[Part, ...]
    reader: PartReader
    again: Callable[[PartMissing], Awaitable[ShardSnapshot]]
    selection: CheckedSelection
    held: Callable[[int, str], Awaitable[tuple[ShardSnapshot, int]]]
    location_url: str = ""

    def splits(self, count: int) -> list[Split]:
        """Divide the snapshot into exactly ``count`` plain values of about equal bytes.

        They have updates: only the sum of all splits is the snapshot.

        Raises:
            UsageError: ``count`` is not a positive number, or the selection omits rows or columns.
        """
        check_whole(count, "the count of splits")
        if count < 1:
            raise UsageError(
                "count must be at least 1: a snapshot has at least one split", count=count
            )
        if not self.is_whole:
            raise UsageError(
                "splits cover whole snapshots: omit columns and where, and select from the rows "
                "of each split"
            )
        return plan_splits(self.shard, self.schema, self.as_of, self.parts, count)

    @property
    def is_whole(self) -> bool:
        """True if all rows and columns are selected, in their order."""
        return self.selection.is_all(self.schema)

    async def to_arrow(self, *, consolidated: bool = False) -> pa.Table:
        """Return the contents: the selected columns and ``_diff``.

        Each row comes as often as it occurs, with a ``_diff`` of 1. With ``consolidated``, equal
        rows come once, and ``_diff`` counts them. A row with a negative count comes once.

        Raises:
            CorruptionError: a part is missing, or was changed. AsOfBeforeSince: the time is no
                longer kept. UsageError: the condition fails on a row, or the snapshot has 100
                million rows or more of which most are equal. LocationError: the store failed.
        """
        check_kind(consolidated, bool, "consolidated must be True or False")
        if consolidated:
            return await self._consolidated()
        if self._is_as_written:
            return await self._current(_as_written)
        if self.selection.predicate is None:
            found = await self._current(_as_they_occur)
        else:
            found = [table async for table in self._tables(MEMORY_BYTES)]
        return await self.reader.clock.offload(lambda: self._each_row(found))

    def _each_row(self, found: list[pa.Table]) -> pa.Table:
        check_rows_count(found)
        out = self._contents(MEMORY_BYTES).narrow.contents
        rows = (rows for table in found for rows in each_row(table.cast(out)))
        return pa.concat_tables([out.empty_table(), *rows])

    @property
    def _is_as_written(self) -> bool:
        """True if the rows of the parts are the rows of the snapshot."""
        return self.selection.predicate is None and all(part.plain for part in self.parts)

    @property
    def _is_small(self) -> bool:
        return sum(part.size_bytes for part in self.parts) <= IN_MEMORY_BYTES

    async def _consolidated(self) -> pa.Table:
        if self.is_whole and self._is_small:
            return await self._current(_at_once)
        found = [table async for table in self._tables(MEMORY_BYTES)]
        narrow = self._contents(MEMORY_BYTES).narrow
        of_all_columns = set(narrow.names) == set(self.schema.names)
        if of_all_columns and choose_way(self.parts, self.schema) is not Way.AS_WRITTEN:
            return pa.concat_tables([sum_up([], narrow), *found])
        return await self.reader.clock.offload(lambda: sum_up(found, narrow))

    async def to_batches(
        self, *, memory_bytes: int = MEMORY_BYTES
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the contents in batches, never all in memory: the columns and ``_diff``.

        Each row comes as often as it occurs, with a ``_diff`` of 1; see `to_arrow`.

        Units: sorting and grouping hold at most ``memory_bytes`` in memory and spill the rest to
            files.

        Raises:
            ReadOvertaken: the rest was merged and deleted concurrently. All errors of `to_arrow`.
        """
        check_whole(memory_bytes, "memory_bytes")
        async with aclosing(self._tables(memory_bytes)) as tables:
            async for table in tables:
                for rows in each_row(table):
                    for batch in rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
                        yield batch

    async def to_pandas(self) -> Any:
        """Return a pandas DataFrame of the rows that `to_arrow` returns.

        Raises:
            UsageError: pandas is not installed. All errors of `to_arrow`.
        """
        table = await self.to_arrow()
        return await self.reader.clock.offload(lambda: pandas_frame(table))

    async def to_polars(self) -> Any:
        """Return a Polars DataFrame of the rows that `to_arrow` returns.

        Raises:
            UsageError: Polars is not installed. All errors of `to_arrow`.
        """
        return polars_frame(await self.to_arrow())

    async def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the rows, by default on the default connection.

        So ``duckdb.sql`` finds it by the name of its variable. The relation keeps the rows, and
        can be used for as long as its connection is open.

        Raises:
            UsageError: ``connection`` is not one of DuckDB. All errors of `to_arrow`.
        """
        return duckdb_relation(await self.to_arrow(), connection)

    async def to_spark(self, spark: SparkSession, *, hold: str | None = None) -> DataFrame:
        """Return the contents as a Spark DataFrame: the columns and ``_diff``. Nothing is read yet.

        The frame refers to the parts that are named now. They are kept for one hour after a merge
        replaces them, or, with a ``hold`` such as "6h", for that time without renewal. Equal rows
        may remain separate, as in `to_batches`.

        Raises:
            UsageError: the store is this process's memory, Spark has no type for a column, or
                ``hold`` is not a duration. AsOfBeforeSince: the time can no longer be held.
                LocationError: the store failed.
        """
        made: DataFrame = await spark_room("shard_frame").frame_of(spark, self, hold=hold)
        return made

    async def _current(self, read: Callable[[ShardSnapshot], Awaitable[T]]) -> T:
        """Return the result of ``read`` on this snapshot, or on a newer plan of it."""
        snapshot = self
        for _ in range(READS_MAX):
            try:
                return await read(snapshot)
            except PartMissing as error:
                snapshot = await self.again(error)
        raise overtaken()

    def _tables(self, memory_bytes: int) -> AsyncGenerator[pa.Table, None]:
        planned = [self]

        async def plan_again(error: PartMissing) -> None:
            planned.append(await self.again(error))

        def tables() -> AsyncGenerator[pa.Table, None]:
            # The new plan's parts may have a schema that this plan does not know.
            newest = planned[-1]
            return newest._contents(memory_bytes).tables(newest.parts)

        return reread(tables, plan_again)

    def _contents(self, memory_bytes: int) -> ContentsReader:
        return ContentsReader(
            schema=self.schema,
            selection=self.selection,
            as_of=self.as_of,
            store=self.reader.store,
            clock=self.reader.clock,
            memory_bytes=memory_bytes,
        )


async def _at_once(snapshot: ShardSnapshot) -> pa.Table:
    """Return all columns of small parts, consolidated."""
    tables = await snapshot.reader.read(snapshot.parts, snapshot.schema)
    work = partial(accumulate, tables, snapshot.schema, as_of=snapshot.as_of)
    return await snapshot.reader.clock.offload(work)


async def _as_they_occur(snapshot: ShardSnapshot) -> list[pa.Table]:
    """Return the selected columns; only parts whose rows can meet others are consolidated."""
    if snapshot.is_whole and snapshot._is_small:
        return [await _at_once(snapshot)]
    found: list[pa.Table] = []
    contents = snapshot._contents(MEMORY_BYTES)
    for is_plain, parts in divided(snapshot.parts, snapshot.schema):
        if is_plain:
            found.append(await contents.as_written(parts))
        else:
            found += [table async for table in contents.tables(parts)]
    return found


async def _as_written(snapshot: ShardSnapshot) -> pa.Table:
    """Return the selected columns as the parts store them, and decode no other columns."""
    if not snapshot._is_as_written:  # Planned again after a merge.
        return await snapshot.to_arrow()
    return await snapshot._contents(MEMORY_BYTES).as_written(snapshot.parts)


def require_replaced(states: Iterable[State], error: PartMissing) -> None:
    """Raise the error again if one of the newest states still names the missing part.

    Raises:
        PartMissing: the object is lost, and was not replaced by a merge.
    """
    path = str(error.facts["path"]).encode()
    if any(path in batch.packed for state in states for batch in state.batches):
        raise error


def start_after(states: Iterable[State], as_of: int) -> int | None:
    """Return the time at which the data of shards begins; None unless that is after ``as_of``."""
    found = (next((batch for batch in state.batches if batch.rows), None) for state in states)
    earliest = [batch for batch in found if batch is not None]
    # Decoding parts takes time. A batch that ends by ``as_of`` decides without its parts.
    if not earliest or any(b.upper is not None and b.upper <= as_of + 1 for b in earliest):
        return None
    first = min(part.time_min for batch in earliest for part in batch.parts)
    return first if as_of < first else None
