"""Reads of a collection, in pieces: its contents at a time, and its changes.

Source: design page 6, "Times".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from tidelog.collection.formats.times import format_time
from tidelog.core.clock import Clock
from tidelog.core.frames import duckdb_relation, pandas_frame, polars_frame
from tidelog.persist.format.bounds import Box
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.read.by_spark import spark_room
from tidelog.persist.read.contents import ContentsReader, layers_of, parts_in_order
from tidelog.persist.read.opened import PartOpener
from tidelog.persist.read.pieces import (
    PIECE_ROWS,
    SnapshotQuery,
    changes_in_pieces,
    opener_names,
    pieces_as_written,
)
from tidelog.persist.read.selection import CheckedSelection, first_rows, rows_count
from tidelog.persist.read.sweep import FEW_ROWS, pieces_by_key
from tidelog.store.port import Store

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

# A caller that holds all rows in memory has room for larger pieces, whose fixed costs are fewer.
AT_ONCE_ROWS: Final = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A read of some rows and columns of a collection, from parts of its shards.

    Each row is in one shard, so the parts of all shards can be read like those of one shard. With
    ``is_packed``, text columns may keep the dictionary encoding in which they are stored. With
    ``is_at_once``, the caller holds all rows in memory, so all cores decode them at one time. With
    ``is_unique``, a key has at most one row at a time.
    """

    name: str
    rendition: str
    schema: ShardSchema
    appended: bool
    store: Store
    clock: Clock
    wanted: CheckedSelection
    is_packed: bool = False
    is_at_once: bool = False
    is_unique: bool = False

    @property
    def narrow(self) -> ShardSchema:
        """Return the schema of the selected columns, without a key."""
        columns = [self.schema.data.field(name) for name in self.wanted.columns]
        return ShardSchema(pa.schema(columns), 0)

    async def contents(self, parts: Sequence[Part], time: int) -> AsyncGenerator[pa.Table, None]:
        """Yield columns and ``_diff`` of the rows at a time; see `Collection.scan`.

        Raises:
            UsageError: the condition fails on a row. CorruptionError: stored bytes are wrong.
            LocationError: the store failed.
        """
        in_order = parts_in_order(parts, self.schema) if self._is_whole else None
        if in_order is not None:
            yield await self._reader(time).as_written(in_order)
            return
        layers = layers_of(parts, self.schema) if self._is_whole and self.is_unique else None
        if layers is not None and (newest := await self._reader(time).newest(layers)) is not None:
            yield newest
            return
        left = self.wanted.limit
        if left == 0:
            return
        with self.wanted.sandbox() as sandbox:
            box = self.wanted.box
            is_at_once = self.is_at_once and left is None
            rows = AT_ONCE_ROWS if is_at_once else PIECE_ROWS
            columns = self.wanted.needed
            wanted = SnapshotQuery(
                as_of=time, columns=columns, box=box, piece_rows=rows, is_at_once=is_at_once
            )
            read = pieces_as_written if self.appended else pieces_by_key
            async with aclosing(read(parts, wanted, self._opener(box))) as pieces:
                async for piece in pieces:
                    choose = partial(self.wanted.chosen, piece, sandbox, name=self.name)
                    is_small = sandbox is None and piece.num_rows <= FEW_ROWS
                    chosen = choose() if is_small else await self.clock.offload(choose)
                    if left is not None:
                        chosen = first_rows(chosen, left)
                        left -= rows_count(chosen)
                    if chosen.num_rows:
                        yield chosen
                    if left == 0:
                        return

    @property
    def _is_whole(self) -> bool:
        wanted = self.wanted
        return self.is_at_once and wanted.predicate is None and wanted.limit is None

    def _reader(self, time: int) -> ContentsReader:
        return ContentsReader(
            schema=self.schema,
            selection=self.wanted,
            as_of=time,
            store=self.store,
            clock=self.clock,
        )

    async def changes(
        self, parts: Sequence[Part], since: int, until: int
    ) -> AsyncGenerator[pa.Table, None]:
        """Yield columns, ``_time`` and ``_diff`` of the updates after ``since`` up to ``until``.

        Raises:
            UsageError, CorruptionError, LocationError: see `contents`.
        """
        left = self.wanted.limit
        if left == 0:
            return
        with self.wanted.sandbox() as sandbox:
            box = self.wanted.box
            wanted = SnapshotQuery(as_of=until, after=since, columns=self.wanted.needed, box=box)
            async with aclosing(changes_in_pieces(parts, wanted, self._opener(box))) as pieces:
                async for piece in pieces:
                    choose = partial(
                        self.wanted.chosen_changes, piece, sandbox, data=self.schema.data
                    )
                    chosen = (await self.clock.offload(choose)).slice(0, left)
                    if left is not None:
                        left -= chosen.num_rows
                    if chosen.num_rows:
                        yield chosen
                    if left == 0:
                        return

    def _opener(self, box: Box) -> PartOpener:
        names = opener_names(self.schema, box)
        packed = self._packed(box) if self.is_packed else frozenset[str]()
        return PartOpener(
            store=self.store, clock=self.clock, schema=self.schema, names=names, packed=packed
        )

    def _packed(self, box: Box) -> frozenset[str]:
        """Return the selected text columns that the read itself does not compare."""
        texts = {field.name for field in self.schema.data if pa.types.is_string(field.type)}
        return frozenset(texts.intersection(self.wanted.columns) - {*self.schema.key, *box})


class Readable(Protocol):
    """The part of a collection that its contents use."""

    def rows_of(self, reading: Reading, time: int) -> AsyncGenerator[pa.Table, None]: ...


@dataclass(slots=True, kw_only=True, repr=False)
class Contents:
    """The rows of a collection at one time, each repeated by its count; not read yet.

    Later commits and merges do not change them. A hold keeps the time readable.
    """

    as_of: int
    reading: Reading
    collection: Readable
    _table: pa.Table | None = field(init=False, default=None)

    def __repr__(self) -> str:
        columns = len(self.reading.wanted.columns)
        return f"<tidelog contents: {columns} columns as of {format_time(self.as_of)}>"

    async def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table. The first call reads them, and keeps the table.

        Raises:
            AsOfBeforeSince: the time is no longer readable. ReadOvertaken: parts were merged and
                deleted during the read. UsageError: the condition fails on a row.
            CorruptionError: stored bytes are wrong. LocationError: the store failed.
        """
        if self._table is None:
            reading = replace(self.reading, is_at_once=True)
            found = [rows async for rows in self.collection.rows_of(reading, self.as_of)]
            empty = self.reading.narrow.data.empty_table()
            self._table = pa.concat_tables([empty, *found])
        return self._table

    async def to_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows in batches, as they are read; they are never all in memory.

        Raises:
            All errors of `to_arrow`.
        """
        rows = self.collection.rows_of(self.reading, self.as_of)
        async with aclosing(rows) as tables:
            async for table in tables:
                for batch in table.to_batches():
                    yield batch

    async def to_pandas(self) -> Any:
        """Return a pandas DataFrame.

        Raises:
            UsageError: pandas is not installed. All errors of `to_arrow`.
        """
        table = await self.to_arrow()
        return await self.reading.clock.offload(lambda: pandas_frame(table))

    async def to_polars(self) -> Any:
        """Return a Polars DataFrame.

        Raises:
            UsageError: Polars is not installed. All errors of `to_arrow`.
        """
        return polars_frame(await self.to_arrow())

    async def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the Arrow table, by default on the default connection.

        So ``duckdb.sql`` finds it by the name of its variable. The relation keeps the table, and
        can be used for as long as its connection is open.

        Raises:
            UsageError: ``connection`` is not one of DuckDB. All errors of `to_arrow`.
        """
        return duckdb_relation(await self.to_arrow(), connection)

    async def to_spark(self, spark: SparkSession, *, hold: str | None = None) -> DataFrame:
        """Return a Spark DataFrame on a session. Tasks of Spark read the rows, not this process.

        The parts that the frame reads are kept for one hour after a merge replaces them, or, with a
        ``hold`` such as "6h", for that time.

        Raises:
            UsageError: the selection has a limit, the store is this process's memory, Spark has no
                type for a column, or ``hold`` is not a duration. LocationError: the store failed.
        """
        room = spark_room("collection_frame")
        made: DataFrame = await room.frame_of_contents(
            spark, self.collection, self.reading.wanted, self.as_of, hold=hold
        )
        return made


@dataclass(frozen=True, slots=True, repr=False)
class SqlResult:
    """The rows of a query over collections, all read as of one time, as an Arrow table.

    pandas, Polars, DuckDB and PyArrow read them directly, through the Arrow C stream interface.

    Units: ``as_of`` is in milliseconds since 1970, or None for a query that reads no collection.
        ``later`` has the newest complete time of each collection that is complete at a later time.
    """

    table: pa.Table
    as_of: int | None
    later: Mapping[str, int]

    def __repr__(self) -> str:
        moment = "" if self.as_of is None else f" as of {format_time(self.as_of)}"
        shape = f"{self.table.num_rows} rows, {self.table.num_columns} columns"
        return f"<tidelog SQL result: {shape}{moment}>"

    def __len__(self) -> int:
        return self.table.num_rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        stream: object = self.table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
        return stream

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        yield from self.table.to_batches()

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame.

        Raises:
            UsageError: pandas is not installed.
        """
        return pandas_frame(self.table)

    def to_polars(self) -> Any:
        """Return a Polars DataFrame.

        Raises:
            UsageError: Polars is not installed.
        """
        return polars_frame(self.table)

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation over the rows, by default on the default connection.

        So ``duckdb.sql`` finds it by the name of its variable. The relation keeps the rows, and
        can be used for as long as its connection is open.

        Raises:
            UsageError: ``connection`` is not one of DuckDB.
        """
        return duckdb_relation(self.table, connection)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return a Spark DataFrame on a session."""
        return spark.createDataFrame(self.table)


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """A column: its name, and its type in SQL's words."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class RenditionDescription:
    """A rendition: its name, whether readers read it, and the ids of its shards."""

    id: str
    active: bool
    shards: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionDescription:
    """The schema, times and sizes of a collection.

    Units: ``since`` and ``upper`` are times of the collection in milliseconds, or None after the
        last time; ``complete_to`` is the newest complete time as text, or None if there is none.
    """

    name: str
    schema: tuple[ColumnDescription, ...]
    key: tuple[str, ...]
    since: int | None
    upper: int | None
    complete_to: str | None
    renditions: tuple[RenditionDescription, ...]
    rows: int
    updates: int
    bytes: int
    parts: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON values."""
        return asdict(self)
