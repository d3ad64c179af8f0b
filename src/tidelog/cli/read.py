"""``tidelog read`` and ``tidelog changes``: the rows of a collection, and its changes."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import (
    AsJson,
    CollectionName,
    Timeout,
    Wait,
    on_location,
    timeout_us_of,
)
from tidelog.cli.output import first_rows, say
from tidelog.cli.writers import (
    Columns,
    Destination,
    Format,
    Limit,
    Output,
    Where,
    check_follow,
    write_all,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    import pyarrow as pa

    from tidelog.collection.reading import Reading
    from tidelog.location import Location


def read(
    context: typer.Context,
    name: CollectionName,
    *,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The time to read: ISO 8601 (UTC without an offset), milliseconds since 1970, "
            "now, yesterday or -1h. The default is the newest complete time.",
        ),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows of a collection as of a time.

    Rows are in the order of their key. Without a key, the rows of a source are in the order of
    writing, and those of a table in the order of their columns. A row that occurs several times is
    repeated. The command reads only the columns that it needs, and skips row groups in which, by
    their Parquet statistics, no row meets --where.

    JSON has dates and times in ISO 8601, and bytes in base64. NaN, Infinity and decimals of more
    than 15 digits are strings. In csv, null is empty, and an empty text is "".
    """
    to = Destination(format, output, as_json=as_json, columns=columns, where=where, limit=limit)
    waiting = Waiting(wait, timeout_us_of(timeout))
    on_location(context, partial(_read, name=name, as_of=as_of, waiting=waiting, to=to))


@dataclass(frozen=True, slots=True)
class Waiting:
    """The options ``--wait`` and ``--timeout`` of a read."""

    wait: bool
    timeout_us: int | None


async def _read(
    location: Location, name: str, as_of: str | None, waiting: Waiting, to: Destination
) -> None:
    from tidelog.collection.formats.times import format_time, parse_time

    if as_of is not None:
        parse_time(as_of, now_us=location.clock.now_us())
    collection = await location.collection(name)
    reading = collection.reading(to.selection(), is_packed=to.format == "parquet")
    time = await collection.resolve_as_of(
        as_of, what="--as-of", wait=waiting.wait, timeout_us=waiting.timeout_us
    )
    _say_bare_time(as_of, "--as-of")
    era = collection.era_at(time)
    reading = era.own_reading(reading, to.selection())
    rows = era.rows_of(reading, time)
    told = f"as of {format_time(time)}"
    await write_all(rows, reading.narrow.data, to, clock=location.clock, unit="row", told=told)


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
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new changes until Ctrl-C.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Print the changes of a collection between two times.

    The changes are in the order of their times. Each has a _time (milliseconds since 1970; in
    tables ISO 8601) and a _diff: the number of copies of the row that were added (1) or removed
    (-1). The rows as of --since and the changes give the rows as of --until. With --columns,
    they are the changes of a collection with these columns only.

    With --follow, the command writes changes as they become complete. Each change comes once, also
    if batches are merged concurrently.
    """
    to = Destination(format, output, as_json=as_json, columns=columns, where=where, limit=limit)
    waiting = Waiting(wait, timeout_us_of(timeout))
    if follow:
        check_follow(until, output)
        on_location(context, partial(_follow, name=name, since=since, waiting=waiting, to=to))
        return
    work = partial(_changes, name=name, since=since, until=until, waiting=waiting, to=to)
    on_location(context, work)


async def _follow(
    location: Location, name: str, since: str, waiting: Waiting, to: Destination
) -> None:
    import pyarrow as pa

    from tidelog.collection.following import follow
    from tidelog.collection.formats.times import format_time, parse_time

    parse_time(since, what="--since", now_us=location.clock.now_us())
    collection = await location.collection(name)
    reading = collection.reading(replace(to.selection(), limit=None))
    reached = await collection.resolve_start(
        since, wait=waiting.wait, timeout_us=waiting.timeout_us
    )
    _say_bare_time(since, "--since")
    shown = _shown_by(reading, to)

    async def rows() -> AsyncGenerator[pa.Table, None]:
        async with aclosing(follow(collection, reading, reached)) as steps:
            async for step in steps:
                if step.updates.num_rows:
                    yield shown(step.updates)

    schema = shown(pa.Table.from_batches([], reading.narrow.updates)).schema
    told = f"after {format_time(reached)}"
    found = first_rows(rows(), to.limit)
    clock = location.clock
    await write_all(found, schema, to, clock=clock, unit="change", told=told, is_endless=True)


def _shown_by(reading: Reading, to: Destination) -> Callable[[pa.Table], pa.Table]:
    """Return the function that puts changes into the columns that the command writes."""
    from tidelog.persist.format.schema import DIFF, TIME

    def shown(found: pa.Table) -> pa.Table:
        found = found.select([TIME, DIFF, *reading.wanted.columns])
        return _with_iso_times(found) if to.format == "table" else found

    return shown


async def _changes(
    location: Location,
    *,
    name: str,
    since: str,
    until: str | None,
    waiting: Waiting,
    to: Destination,
) -> None:
    import pyarrow as pa

    from tidelog.collection.formats.times import format_time, parse_time

    now_us = location.clock.now_us()
    parse_time(since, what="--since", now_us=now_us)
    if until is not None:
        parse_time(until, what="--until", now_us=now_us)
    collection = await location.collection(name)
    reading = collection.reading(to.selection())
    first, last = await collection.resolve_between(
        since, until, wait=waiting.wait, timeout_us=waiting.timeout_us
    )
    _say_bare_time(since, "--since")
    _say_bare_time(until, "--until")
    era = collection.era_at(last)
    reading = era.own_reading(reading, to.selection())
    shown = _shown_by(reading, to)

    async def rows() -> AsyncGenerator[pa.Table, None]:
        async with aclosing(era.changes_of(reading, first, last)) as pieces:
            async for piece in pieces:
                yield shown(piece)

    schema = shown(pa.Table.from_batches([], reading.narrow.updates)).schema
    told = f"after {format_time(first)} up to {format_time(last)}"
    await write_all(rows(), schema, to, clock=location.clock, unit="change", told=told)


def _say_bare_time(text: str | None, option: str) -> None:
    """Show the time that a bare number means: a user may give seconds for milliseconds."""
    from tidelog.collection.formats.times import format_time, parse_time

    if text is not None and text.strip().isdecimal():
        moment = format_time(parse_time(text, what=option))
        say(f"{option} {text.strip()} is milliseconds since 1970: {moment}")


def _with_iso_times(found: pa.Table) -> pa.Table:
    import pyarrow as pa

    from tidelog.collection.formats.times import format_time
    from tidelog.persist.format.schema import TIME

    moments = found.column(TIME).to_numpy().tolist()
    times = pa.array([format_time(moment) for moment in moments], pa.string())
    return found.set_column(0, TIME, times)
