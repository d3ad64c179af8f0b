"""``tidelog changes``: how a collection changed between two times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, CollectionName, on_location
from tidelog.cli.output import choose_format, count_text, open_rows, say

if TYPE_CHECKING:
    from tidelog.location import Location


def changes(
    context: typer.Context,
    name: CollectionName,
    *,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="After this time: what is read as of it, is had.")
    ],
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Up to this time; by default the newest that is complete."
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="table|json|csv",
            help="By default a table on a terminal, JSON lines elsewhere.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write how a collection changed between two times.

    The changes come in the order of their times. Each has a _time (milliseconds since 1970; in
    tables ISO 8601) and a _diff: how many of the row came (1) or went (-1). With what is read as of
    --since, they make what is read as of --until.
    """
    chosen = choose_format(format, as_json=as_json)
    on_location(context, lambda location: _changes(location, name, since, until, chosen))


async def _changes(
    location: Location, name: str, since: str, until: str | None, format: str
) -> None:
    import pyarrow as pa

    from tidelog.collection.times import format_time, parse_time
    from tidelog.persist.schema import DIFF, TIME

    first = parse_time(since, what="--since")
    last = None if until is None else parse_time(until, what="--until")
    collection = await location.collection(name)
    found = await collection.changes(first, last)
    found = found.select([TIME, DIFF, *collection.schema.names])
    if format == "table":
        moments = found.column(TIME).to_numpy().tolist()
        times = pa.array([format_time(moment) for moment in moments], pa.string())
        found = found.set_column(0, TIME, times)
    rows = open_rows(format, found.schema)
    rows.write(found)
    rows.close()
    if format == "table":
        end = format_time(collection.upper.time - 1 if last is None else last)
        say(f"{count_text(found.num_rows, 'change')} after {format_time(first)} up to {end}")
