"""``tidelog read``: the rows of a collection at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, CollectionName, on_location
from tidelog.cli.output import choose_format, count_text, open_rows, say

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.collection.predicate import Predicate
    from tidelog.location import Location
    from tidelog.persist.schema import ShardSchema

BLOCK_ROWS: Final = 8_192


def read(
    context: typer.Context,
    name: CollectionName,
    *,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="ISO 8601 (UTC unless it says otherwise), or milliseconds since 1970. "
            "By default the newest time that is complete.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="A condition on the columns, in DuckDB's dialect."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="table|json|csv",
            help="By default a table on a terminal, JSON lines elsewhere.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of a collection as of a time.

    A row comes as often as its multiplicity says. Rows are in the order of their key (without one,
    of all columns); in json and csv, of a collection of several shards, one shard after another.

    JSON has dates and times in ISO 8601, bytes in base64, and as strings what its numbers cannot
    hold: NaN, Infinity, decimals of more than 15 digits. In csv null is empty, no text is "".
    """
    chosen = choose_format(format, as_json=as_json)
    on_location(
        context, lambda location: _read(location, _Wanted(name, as_of, where, limit, chosen))
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a reader asked for."""

    name: str
    as_of: str | None
    where: str | None
    limit: int | None
    format: str


async def _read(location: Location, wanted: _Wanted) -> None:
    import pyarrow as pa

    from tidelog.collection.collection import check_multiplicity
    from tidelog.collection.expression import check_predicate
    from tidelog.collection.times import format_time, parse_time

    time = None if wanted.as_of is None else parse_time(wanted.as_of)
    collection = await location.collection(wanted.name)
    schema = collection.schema
    predicate = None
    if wanted.where is not None:
        predicate = check_predicate(wanted.where, schema.data, definite=False, what="--where")
    snapshots = await collection.snapshots(time)
    rows = open_rows(wanted.format, schema.data)
    written = 0
    found: list[pa.Table] = []
    for number, snapshot in enumerate(snapshots, 1):
        contents = await snapshot.to_arrow()
        check_multiplicity(contents, wanted.name)
        found.append(contents)
        if wanted.format == "table" and number < len(snapshots):
            continue  # People want one order over all shards.
        choose = partial(chosen_rows, pa.concat_tables(found), schema, predicate)
        ready, found = await location.clock.offload(choose), []
        left = None if wanted.limit is None else wanted.limit - written
        for block in repeated(ready, left):
            rows.write(block)
            written += block.num_rows
        if wanted.limit is not None and written >= wanted.limit:
            break
    rows.close()
    if wanted.format == "table":
        say(f"{count_text(written, 'row')} as of {format_time(snapshots[0].as_of)}")


def chosen_rows(contents: pa.Table, schema: ShardSchema, predicate: Predicate | None) -> pa.Table:
    """Return those of the contents that were asked for, in the order of their key.

    Raises:
        UsageError: the predicate fails on a row.
    """
    from tidelog.collection.predicate import filter_table
    from tidelog.persist.duck import duck, quoted

    if predicate is not None:
        contents = filter_table(contents, predicate)
    order = ", ".join(quoted(name) for name in schema.names)  # The key's columns come first.
    with duck() as connection:
        connection.register("contents", contents)
        query = f"SELECT * FROM contents ORDER BY {order}"
        found: pa.Table = connection.sql(query).to_arrow_table()
    return found.cast(contents.schema)


def repeated(contents: pa.Table, limit: int | None) -> Iterator[pa.Table]:
    """Yield the rows as often as their ``_diff`` says, without it, block by block."""
    import numpy as np

    from tidelog.persist.schema import DIFF

    ends = np.cumsum(contents.column(DIFF).to_numpy())
    rows = contents.drop_columns([DIFF])
    total = int(ends[-1]) if len(ends) else 0
    total = total if limit is None else min(total, limit)
    for start in range(0, total, BLOCK_ROWS):
        places = np.arange(start, min(total, start + BLOCK_ROWS))
        yield rows.take(np.searchsorted(ends, places, side="right"))
