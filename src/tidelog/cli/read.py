"""``tidelog read``: the rows of a collection as of a time."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, CollectionName, on_location
from tidelog.cli.output import count_text, say
from tidelog.cli.shown_rows import SHOWN_MAX, ShownRows
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
    from collections.abc import AsyncGenerator, Callable

    import pyarrow as pa

    from tidelog.core.clock import Clock
    from tidelog.location import Location


AHEAD_MAX: Final = 4  # Tables in memory: one is written while threads prepare the others.


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
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of a collection as of a time.

    Rows are in the order of their key; without a key, in the order of writing. A row that occurs
    several times is repeated. Columns, conditions and limits are pushed down to Parquet statistics.

    JSON has dates and times in ISO 8601, and bytes in base64. NaN, Infinity and decimals of more
    than 15 digits are strings. In csv, null is empty, and an empty text is "".
    """
    destination = Destination(format, output, as_json=as_json)
    picked = picked_by(columns, where, limit)
    on_location(context, lambda location: _read(location, name, as_of, picked, destination))


async def _read(
    location: Location,
    name: str,
    as_of: str | None,
    picked: OutputSelection,
    destination: Destination,
) -> None:
    from tidelog.collection.formats.times import format_time, parse_time
    from tidelog.persist.read.selection import repeated

    if as_of is not None:
        parse_time(as_of, now_us=location.clock.now_us())
    collection = await location.collection(name)
    is_packed = destination.format == "parquet"
    reading = collection.reading(picked.selection(), is_packed=is_packed)
    time = await collection.resolve_as_of(as_of, what="--as-of")
    if as_of is not None:
        say_bare_time(as_of, "--as-of")

    async def rows() -> AsyncGenerator[pa.Table, None]:
        async with aclosing(collection.contents(reading, time)) as pieces:
            async for piece in pieces:
                for table in repeated(piece):
                    yield table

    written = await write_all(
        rows(), reading.narrow.data, destination, clock=location.clock, limit=picked.limit
    )
    if destination.format == "table":
        say(f"{count_text(written, 'row')} as of {format_time(time)}")


async def write_all(
    tables: AsyncGenerator[pa.Table, None],
    schema: pa.Schema,
    destination: Destination,
    *,
    clock: Clock,
    limit: int | None = None,
    is_endless: bool = False,
) -> int:
    """Write rows as they arrive, and return their count; reads and conversions run ahead.

    `AHEAD_MAX` bounds the tables in memory. A table on a terminal ends after `SHOWN_MAX` rows with
    the count of the others, unless the caller gives a ``limit`` or its rows are ``is_endless``.
    """
    import pyarrow as pa

    from tidelog.core.lookahead import in_order

    # The system allocator returns memory sooner than Arrow's default pool, at equal speed here.
    pa.set_memory_pool(pa.system_memory_pool())
    count = 0
    is_cut = destination.is_for_people and limit is None and not is_endless
    cut = ShownRows(SHOWN_MAX if is_cut else None)

    async def pieces() -> AsyncGenerator[_Piece, None]:
        async with aclosing(tables):
            async for table in tables:
                shown = cut.shown(table)
                if shown.num_rows or not table.num_rows:
                    yield _Piece([shown], shown.num_rows, shown.nbytes)
                if cut.is_done:
                    return

    async def prepare(piece: _Piece) -> Callable[[], None]:
        # pop() removes the last reference to the table, so that its memory is free once converted.
        return await clock.offload(lambda: rows.prepare(piece.tables.pop()))

    def size_of(piece: _Piece) -> int:
        return piece.size_bytes

    with destination.opened(schema) as rows:
        ready = in_order(pieces(), prepare, size_of=size_of, at_once=AHEAD_MAX)
        async with aclosing(ready):
            async for piece, write in ready:
                count += piece.rows
                await clock.offload(write)
    cut.report()
    return count


@dataclass(frozen=True, slots=True)
class _Piece:
    """A table that waits to be written; ``tables`` is empty after the conversion."""

    tables: list[pa.Table]
    rows: int
    size_bytes: int


def say_bare_time(text: str, option: str) -> None:
    """Show the time that a bare number means: a user may give seconds for milliseconds."""
    from tidelog.collection.formats.times import format_time, parse_time

    if text.strip().isdecimal():
        moment = format_time(parse_time(text, what=option))
        say(f"{option} {text.strip()} is milliseconds since 1970: {moment}")
