"""``tidelog changes``: the changes of a collection between two times."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, CollectionName, on_location
from tidelog.cli.output import count_text, say
from tidelog.cli.read import say_bare_time, write_all
from tidelog.cli.writers import (
    Columns,
    Destination,
    Format,
    Limit,
    Output,
    OutputSelection,
    Where,
    picked_by,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from tidelog.location import Location


def changes(
    context: typer.Context,
    name: CollectionName,
    *,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Show changes after this time (exclusive), written as in read --as-of.",
        ),
    ],
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show changes up to this time (inclusive). The default is the newest complete "
            "time.",
        ),
    ] = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Write the changes of a collection between two times.

    The changes are in the order of their times. Each has a _time (milliseconds since 1970; in
    tables ISO 8601) and a _diff: the number of copies of the row that were added (1) or removed
    (-1). The rows as of --since and the changes give the rows as of --until. With --columns,
    they are the changes of a collection with these columns only.
    """
    destination = Destination(format, output, as_json=as_json)
    asked = _Request(name, since, until, picked_by(columns, where, limit), destination)
    on_location(context, lambda location: _changes(location, asked))


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of the command, checked."""

    name: str
    since: str
    until: str | None
    picked: OutputSelection
    destination: Destination


async def _changes(location: Location, asked: _Request) -> None:
    import pyarrow as pa

    from tidelog.collection.formats.times import format_time, parse_time
    from tidelog.persist.format.schema import DIFF, TIME

    now_us = location.clock.now_us()
    parse_time(asked.since, what="--since", now_us=now_us)
    if asked.until is not None:
        parse_time(asked.until, what="--until", now_us=now_us)
    collection = await location.collection(asked.name)
    reading = collection.reading(asked.picked.selection())
    first, last = await collection.resolve_between(asked.since, asked.until)
    for option, text in (("--since", asked.since), ("--until", asked.until)):
        if text is not None:
            say_bare_time(text, option)
    is_table = asked.destination.format == "table"

    def shown(found: pa.Table) -> pa.Table:
        found = found.select([TIME, DIFF, *reading.wanted.columns])
        return _with_iso_times(found) if is_table else found

    async def rows() -> AsyncGenerator[pa.Table, None]:
        async with aclosing(collection.changes_of(reading, first, last)) as pieces:
            async for piece in pieces:
                yield shown(piece)

    schema = shown(pa.Table.from_batches([], reading.narrow.updates)).schema
    limit = asked.picked.limit
    written = await write_all(rows(), schema, asked.destination, clock=location.clock, limit=limit)
    if is_table:
        told = f"after {format_time(first)} up to {format_time(last)}"
        say(f"{count_text(written, 'change')} {told}")


def _with_iso_times(found: pa.Table) -> pa.Table:
    import pyarrow as pa

    from tidelog.collection.formats.times import format_time
    from tidelog.persist.format.schema import TIME

    moments = found.column(TIME).to_numpy().tolist()
    times = pa.array([format_time(moment) for moment in moments], pa.string())
    return found.set_column(0, TIME, times)
