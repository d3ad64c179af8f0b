"""Definitions: the arguments of a table's creation, and the items of the catalog. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidelog.collection.catalog.catalog import CollectionInfo, RenditionInfo, TableInfo
from tidelog.collection.formats.types import parse_schema
from tidelog.collection.spec_types import SHARDS_MAX
from tidelog.collection.table.alteration import check_name_of_column
from tidelog.collection.table.direct import DIRECT, MODES
from tidelog.core.arguments import check_kind, check_names, check_whole, quoted
from tidelog.core.clock import Clock
from tidelog.core.ids import new_rendition_id, new_shard_id
from tidelog.errors import UsageError
from tidelog.persist.format.schema import ShardSchema, shard_schema


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The arguments of a creation; see `Tables.create`."""

    name: str
    schema: pa.Schema | str
    key: Sequence[str]
    shards: int
    retain_ms: int | None
    mode: str

    def planned(self, clock: Clock) -> tuple[CollectionInfo, RenditionInfo, TableInfo]:
        """Return the items of the catalog.

        Raises:
            UsageError: an argument is invalid.
        """
        key = [check_name_of_column(one, "key") for one in check_names(self.key, "key")]
        if type(self.shards) is not int or not 1 <= self.shards <= SHARDS_MAX:
            raise UsageError(
                f"shards= must be a whole number (int) from 1 to {SHARDS_MAX}",
                found=quoted(self.shards),
            )
        if self.mode not in MODES:
            raise UsageError(f"mode= must be {' or '.join(MODES)}, not {quoted(self.mode)}")
        if self.mode == DIRECT and self.shards != 1:
            raise UsageError(
                "a table of mode 'direct' has one shard: remove shards=, or create the table in "
                "mode 'wal'"
            )
        if self.retain_ms is not None:
            check_whole(self.retain_ms, "retain_ms")
        schema, now_us = table_schema(self.schema, key), clock.now_us()
        rendition = RenditionInfo(
            id=new_rendition_id(clock),
            collection=self.name,
            schema=schema.encoded,
            shards=tuple(new_shard_id(clock) for _ in range(self.shards)),
        )
        collection = CollectionInfo(
            name=self.name, active=rendition.id, renditions=(rendition.id,), created_us=now_us
        )
        info = TableInfo(
            name=self.name,
            rendition=rendition.id,
            key=tuple(key),
            created_us=now_us,
            retain_ms=self.retain_ms,
            mode=self.mode,
        )
        return collection, rendition, info


def table_schema(given: pa.Schema | str, key: Sequence[str]) -> ShardSchema:
    """Return the schema of a table's shards. Without a key, rows are sorted by all columns.

    Raises:
        UsageError: the schema is not valid, or a key column does not exist.
    """
    if isinstance(given, str):
        given = parse_schema(given)
    check_kind(given, pa.Schema, "schema must be a pyarrow.Schema or a text 'name type, ...'")
    for column in given:
        if not column.nullable and column.name not in key:
            raise UsageError(
                f"the column {column.name!r} is not nullable, but only key columns can refuse "
                "nulls: make it nullable"
            )
    return shard_schema(given, key=list(key) or None)
