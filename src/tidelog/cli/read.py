"""``tidelog read``: the rows of a collection at a time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, CollectionName, on_location
from tidelog.cli.output import count_text, say
from tidelog.cli.writers import Columns, Destination, Format, Limit, Output, Picked, Where, names_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    import pyarrow as pa

    from tidelog.clock import Clock
    from tidelog.location import Location


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
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of a collection as of a time.

    A row comes as often as its multiplicity says. Rows are in the order of their key; where they
    are only appended, as they were written. What the columns, the condition and the limit leave
    out is not read, where that can be told without reading it.

    JSON has dates and times in ISO 8601, bytes in base64, and as strings what its numbers cannot
    hold: NaN, Infinity, decimals of more than 15 digits. In csv null is empty, no text is "".
    """
    destination = Destination(format, output, as_json=as_json)
    picked = Picked(names_of(columns), where, limit)
    on_location(context, lambda location: _read(location, name, as_of, picked, destination))


async def _read(
    location: Location,
    name: str,
    as_of: str | None,
    picked: Picked,
    destination: Destination,
) -> None:
    from tidelog.collection.formats.times import format_time, parse_time
    from tidelog.collection.predicate.selection import repeated

    time = None if as_of is None else parse_time(as_of)
    collection = await location.collection(name)
    reading = collection.reading(picked.selection())
    time = await collection.resolve_as_of(time, what="--as-of")
    if as_of is not None:
        say_bare_time(as_of, "--as-of")

    async def rows() -> AsyncGenerator[pa.Table, None]:
        async with aclosing(reading.contents(collection.parts_until(time), time)) as pieces:
            async for piece in pieces:
                for table in repeated(piece):
                    yield table

    written = await write_all(rows(), reading.narrow.data, destination, clock=location.clock)
    if destination.format == "table":
        say(f"{count_text(written, 'row')} as of {format_time(time)}")


async def write_all(
    tables: AsyncGenerator[pa.Table, None],
    schema: pa.Schema,
    destination: Destination,
    *,
    clock: Clock,
) -> int:
    """Write rows as they come, while the next are read; return how many there were."""
    from functools import partial

    import pyarrow as pa

    from tidelog.clock import run_all

    # It gives memory back sooner than Arrow's others do, and is as fast here.
    pa.set_memory_pool(pa.system_memory_pool())

    async def following() -> pa.Table | None:
        return await anext(tables, None)

    async def write(table: pa.Table) -> None:
        await clock.offload(partial(rows.write, table))

    count = 0
    async with aclosing(tables):
        with destination.opened(schema) as rows:
            table = await following()
            while table is not None:
                count += table.num_rows
                works: list[Callable[[], Awaitable[pa.Table | None]]] = [
                    following,
                    partial(write, table),
                ]
                table, _ = await run_all(works, at_once=2)
    return count


def say_bare_time(text: str, option: str) -> None:
    """Say what a bare number was taken for: a time in seconds is easily given for one."""
    from tidelog.collection.formats.times import format_time, parse_time

    if text.strip().isdecimal():
        moment = format_time(parse_time(text, what=option))
        say(f"{option} {text.strip()} is milliseconds since 1970: {moment}")
