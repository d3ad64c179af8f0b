"""Reads of a collection, in pieces: its contents at a time, and its changes.

Source: design page 6, "Times".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from tidelog.collection.formats.times import format_time
from tidelog.core.clock import Clock
from tidelog.persist.format.bounds import Box
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.read.opened import PartOpener
from tidelog.persist.read.pieces import (
    Wanted,
    changes_in_pieces,
    opener_names,
    pieces_as_written,
)
from tidelog.persist.read.selection import CheckedSelection, first_rows, rows_count
from tidelog.persist.read.sweep import pieces_by_key
from tidelog.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A read of some rows and columns of a collection, from parts of its shards.

    Each row is in one shard, so the parts of all shards can be read like those of one shard. With
    ``is_packed``, text columns may keep the dictionary encoding in which they are stored.
    """

    name: str
    schema: ShardSchema
    appended: bool
    store: Store
    clock: Clock
    wanted: CheckedSelection
    is_packed: bool = False

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
        left = self.wanted.limit
        if left == 0:
            return
        with self.wanted.sandbox() as sandbox:
            box = self.wanted.box(sandbox)
            wanted = Wanted(as_of=time, columns=self.wanted.needed, box=box)
            read = pieces_as_written if self.appended else pieces_by_key
            async with aclosing(read(parts, wanted, self._opener(box))) as pieces:
                async for piece in pieces:
                    choose = partial(self.wanted.chosen, piece, sandbox, name=self.name)
                    chosen = await self.clock.offload(choose)
                    if left is not None:
                        chosen = first_rows(chosen, left)
                        left -= rows_count(chosen)
                    if chosen.num_rows:
                        yield chosen
                    if left == 0:
                        return

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
            box = self.wanted.box(sandbox)
            wanted = Wanted(as_of=until, after=since, columns=self.wanted.needed, box=box)
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


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of a collection at one time, each repeated by its count.

    Later commits do not change them. pandas, Polars, DuckDB and PyArrow read them directly, through
    the Arrow C stream interface.
    """

    table: pa.Table
    as_of: int

    def __repr__(self) -> str:
        shape = f"{self.table.num_rows} rows, {self.table.num_columns} columns"
        return f"<tidelog contents: {shape} as of {format_time(self.as_of)}>"

    def __len__(self) -> int:
        return self.table.num_rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        stream: object = self.table.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
        return stream

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame (pandas must be installed)."""
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """Return a polars DataFrame (polars must be installed)."""
        import polars

        return polars.from_arrow(self.table)

    def to_spark(self, spark: Any) -> Any:
        """Return a Spark DataFrame on a session."""
        return spark.createDataFrame(self.table)


@dataclass(frozen=True, slots=True)
class ColumnDescription:
    """A column: its name, and its type in SQL's words."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class RenditionDescription:
    """A rendition: whether readers read it, and the ids of its shards."""

    id: str
    active: bool
    shards: tuple[str, ...]


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
