"""``tidelog shard create``, ``append`` and ``drop``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, Yes, ask_first, location_url, on_location
from tidelog.cli.feed import RowFormat, check_row_input, row_format_of
from tidelog.cli.output import count_text, show
from tidelog.cli.shard.arguments import (
    END,
    ShardName,
    check_shard_name,
    on_shard,
    schema_of,
    time_of,
)
from tidelog.core.arguments import quoted, split_names
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.cli.shard.updates import FeedReport
    from tidelog.core.frontier import Frontier
    from tidelog.location import Location
    from tidelog.persist.format.schema import ShardSchema
    from tidelog.persist.handle.shard import Shard


def create(
    context: typer.Context,
    name: ShardName,
    *,
    schema: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Columns and their types: 'flight int, day date'."),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="The columns of the key, with commas between them. The default is all columns.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a shard, and the location if it does not exist."""
    check_shard_name(name)
    location_url(context)
    shape = shape_of(schema, key)

    async def work(location: Location) -> None:
        await location.shards.create(name, schema=shape.data, key=shape.key)

    on_location(context, work, create=True)
    show(
        {"shard": name, "columns": shape.names, "key": shape.key},
        f"Created the shard {name!r}. Append to it with: tidelog shard append {name} FILES",
        as_json=as_json,
    )


def shape_of(schema: str, key: str | None) -> ShardSchema:
    """Return the schema from ``--schema`` and ``--key``.

    Raises:
        UsageError: a value is not a list of columns.
    """
    from tidelog.collection.formats.types import parse_schema
    from tidelog.persist.format.schema import shard_schema

    columns = parse_schema(schema)
    names = None if key is None else [name for name in split_names(key) if name]
    return shard_schema(columns, key=names)


Delimiter = Annotated[
    str, typer.Option(metavar="CHARACTER", help="csv: the delimiter between fields, or 'tab'.")
]


def append(
    context: typer.Context,
    name: ShardName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files of rows. The default is standard input."),
    ] = None,
    *,
    format: RowFormat = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The time of all rows. The default is the column _time."),
    ] = None,
    diff: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The diff of all rows. The default is the column _diff, or 1."
        ),
    ] = None,
    expected_upper: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Fail unless this is the shard's upper. The default is any upper."
        ),
    ] = None,
    upper: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|end", help="The new upper. The default is one past the last row's time."
        ),
    ] = None,
    delimiter: Delimiter = ",",
    as_json: AsJson = False,
) -> None:
    """Append rows to a shard: all of them, or none.

    A row has a value for each column. It may have a _time and a _diff: the number of copies that it
    adds (1) or removes (-1). Its time must be at or after the shard's upper (the first time
    that is not complete), and before the new upper. Times before the new upper are then complete.
    Without rows, only upper moves. If a row does not fit, the command names it and appends nothing.
    """
    check_shard_name(name)
    asked = _Request(
        files=files or [],
        format=row_format_of(files or [], format),
        time=None if time is None else time_of(time, "--time"),
        diff=_diff_of(diff),
        expected=_frontier_of(expected_upper, "--expected-upper"),
        upper=_frontier_of(upper, "--upper"),
        delimiter="\t" if delimiter in ("tab", "\\t") else delimiter,
    )
    check_row_input(asked.files)
    found = on_shard(context, name, lambda shard: _append(shard, asked))
    fields = {
        "shard": name,
        "updates": found.updates,
        "parts": found.parts,
        "lower": _plain(found.lower),
        "upper": _plain(found.upper),
    }
    moved = f"upper moved from {found.lower} to {found.upper}"
    show(fields, f"{count_text(found.updates, 'update')} appended; {moved}", as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The arguments of an append, checked."""

    files: list[Path]
    format: str
    time: int | None
    diff: int | None
    expected: Frontier | None
    upper: Frontier | None
    delimiter: str


async def _append(shard: Shard, asked: _Request) -> FeedReport:
    from tidelog.cli.row_files import RowFiles
    from tidelog.cli.shard.updates import RowTimes, feed
    from tidelog.collection.formats.lines import CsvDialect
    from tidelog.persist.format.schema import DIFF, TIME
    from tidelog.persist.states.transition import check_not_dropped

    check_not_dropped(shard.state)
    shard.schema = schema_of(shard.state)
    lower = shard.state.upper_frontier if asked.expected is None else asked.expected
    if asked.upper is not None and not lower.is_empty and not lower <= asked.upper:
        raise UsageError(
            f"--upper {asked.upper} is before the shard's upper, {lower}: pass a later time; "
            "nothing was appended"
        )
    timed = RowTimes(time=asked.time, diff=asked.diff)
    dialect = CsvDialect(delimiter=asked.delimiter, multiline=True)
    reader = RowFiles(
        wanted=timed.columns(shard.schema), optional=frozenset({TIME, DIFF}), dialect=dialect
    )
    tables = reader.tables(asked.files, asked.format)
    return await feed(shard, tables, timed, expected=asked.expected, upper=asked.upper)


def _diff_of(diff: int | None) -> int | None:
    if diff == 0:
        raise UsageError("--diff must be the number of copies to add (1) or remove (-1), not 0")
    if diff is not None and not -(2**63) <= diff < 2**63:
        raise UsageError(f"--diff must be a whole number of 64 bits, not {quoted(diff)}")
    return diff


def _frontier_of(text: str | None, what: str) -> Frontier | None:
    """Parse a time or ``end`` into a frontier; ``what`` names the option in errors."""
    from tidelog.core.frontier import Frontier

    if text is None:
        return None
    return Frontier.of(None) if text.strip().lower() == END else Frontier.at(time_of(text, what))


def _plain(frontier: Frontier) -> int | None:
    return None if frontier.is_empty else frontier.time


def drop(
    context: typer.Context,
    name: ShardName,
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop a shard: it can no longer be written or read, for good.

    The next 'tidelog collect' deletes its objects. The name is never reused. To end the writes but
    keep the contents: tidelog shard append NAME --upper end < /dev/null.
    """
    if not yes:
        ask_first(
            lambda: f"Drop the shard {name!r}, and give up its contents for good?",
            deed="drop the shard",
        )
    vanished = on_location(context, lambda location: location.shards.drop(name))
    show(
        {"shard": name, "objects": vanished},
        f"Dropped {name!r}; tidelog collect will delete {count_text(vanished, 'object')}",
        as_json=as_json,
    )
