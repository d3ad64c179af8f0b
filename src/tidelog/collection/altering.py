"""Alterations of sources: their checks, and the search for values that a drop would lose.

An alteration of a source is an entry of the catalog, no more. The next ranges that an ingester
binds name its schema, so all ingesters decode them alike, and rows bound before keep the columns
that they were bound with. A shard gets the schema before the first rows that are decoded in it.
Source: design page 6, "Schemas"; decision 31.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pyarrow as pa

from tidelog.collection.catalog.catalog import COLLECTION, RenditionInfo, SourceInfo
from tidelog.collection.collection import Collection
from tidelog.collection.formats.json.texts import check_json_name
from tidelog.collection.formats.text import ONE_COLUMN
from tidelog.collection.source.kind import ROWS, told
from tidelog.collection.source.kinds import open_kind
from tidelog.collection.table.alteration import Alteration
from tidelog.core.arguments import joined_names
from tidelog.core.clock import Clock
from tidelog.errors import AsOfBeforeSince, AsOfNotComplete, UsageError
from tidelog.persist.format.duck import quoted
from tidelog.persist.read.selection import RowSelection
from tidelog.store.port import Store


def altered_source(
    change: Alteration, rendition: RenditionInfo, source: SourceInfo
) -> RenditionInfo:
    """Return the rendition after an alteration; the same one if it was made already.

    Raises:
        UsageError: a column to add exists or existed, or cannot be found in the data; or a column
            to drop does not exist, or the source needs it.
    """
    if change.is_made_in(rendition):
        return rendition
    if source.kind == COLLECTION:
        raise UsageError(
            f"the source {source.name!r} reads another collection, so its columns stay: create "
            "another source, or a rendition with 'tidelog rendition create'"
        )
    if change.add.names and source.format in ONE_COLUMN:
        raise UsageError(
            f"the source {source.name!r} reads text or bytes as they are, so it has one column: to "
            "decode them, create another source"
        )
    if change.add.names and source.format == "csv" and not source.csv.has_header:
        raise UsageError(
            f"the csv of the source {source.name!r} has no header, so a new column has no place in "
            "it: create another source with the column in its schema"
        )
    for field in change.add:
        check_json_name(field)
    name = repr(source.name)
    kept = dict.fromkeys(source.key, f"is in the key of the source {name}")
    if source.time_column is not None:
        kept[source.time_column] = f"has the times of the source {name}"
    after = change.next_of(rendition, f"source {name}", kept)
    if source.delete_when is not None and change.drop:
        _check_condition(source, after.data_schema.data)
    return after


def _check_condition(source: SourceInfo, left: pa.Schema) -> None:
    from tidelog.predicate.expression import check_predicate  # Loads DuckDB.

    condition = source.delete_when or ""
    try:
        check_predicate(condition, left, definite=True, what="delete_when=")
    except UsageError as error:
        raise UsageError(
            f"the source {source.name!r} needs the column to find the rows that delete: keep it",
            delete_when=condition,
        ) from error


async def check_columns_of_kind(
    change: Alteration, source: SourceInfo, *, store: Store, clock: Clock
) -> None:
    """Check that a source with columns of its own has the ones to add.

    Raises:
        UsageError: it lacks one. LocationError: the source's store failed.
    """
    if source.format != ROWS or not change.add.names:
        return
    kind = open_kind(source, store=store, clock=clock)
    with told(kind):
        own = (await kind.columns()).names
    for name in change.add.names:
        if name not in own:
            raise UsageError(
                f"the source {source.name!r} reads no column {name!r}: its columns are "
                f"{joined_names(own)}"
            )


async def check_no_values(collection: Collection, change: Alteration) -> None:
    """Check that no column to drop has a value at a readable time.

    Raises:
        UsageError: one has. LocationError: the store failed.
    """
    if change.drop and await has_values(collection, change.drop):
        writer = "source" if collection.table is None else "table"
        raise UsageError(
            f"columns to drop have values in the {writer} {collection.name!r}: pass "
            "discard_values=True to lose them",
            columns=joined_names(change.drop),
        )


async def has_values(collection: Collection, columns: Sequence[str]) -> bool:
    """Return True if a row at a readable time has a value in one of the columns.

    Raises:
        UsageError: a column does not exist. LocationError: the store failed.
    """
    where = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in columns)
    reading = collection.reading(RowSelection(columns=columns, where=where, limit=1))
    while True:
        try:
            last = await collection.resolve_as_of(None)
            first = collection.since.time
            at_first = collection.contents(reading, first)
            later = collection.changes_of(reading, first, last)
            return any([await _has_rows(one) for one in (at_first, later)])
        except AsOfNotComplete:
            return False  # Nothing was written yet, or the creation of a table was interrupted.
        except AsOfBeforeSince:
            continue  # A merge has moved since, so fewer times are readable.


async def _has_rows(pieces: AsyncGenerator[pa.Table, None]) -> bool:
    async with aclosing(pieces) as opened:
        async for piece in opened:
            if piece.num_rows:
                return True
    return False
