"""``tidelog shard append``: append updates from files or standard input to a shard."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.log.append import check_file
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.cli.shard.opened import (
    ShardName,
    check_shard_name,
    frontier_of,
    schema_of,
    time_of,
)
from tidelog.core.arguments import quoted
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.cli.shard.feed import FeedReport
    from tidelog.core.frontier import Frontier
    from tidelog.location import Location

FORMATS: Final = ("json", "csv", "parquet", "arrow")
_ENDINGS: Final = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}

Delimiter = Annotated[
    str, typer.Option(metavar="CHARACTER", help="csv: the delimiter between fields, or 'tab'.")
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="json|csv|parquet|arrow",
        help="The format of the files. The default follows from their endings, else JSON lines.",
    ),
]


def append(
    context: typer.Context,
    name: ShardName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files of rows. The default is standard input."),
    ] = None,
    *,
    format: Format = None,
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
    adds (1) or removes (-1). Its time must be at or after the shard's upper, and before the new
    upper. Times before the new upper are then complete. Without rows, only upper moves. If a row
    does not fit, the command names it and appends nothing.
    """
    check_shard_name(name)
    asked = _Request(
        name=name,
        files=files or [],
        format=_format_of(files or [], format),
        time=None if time is None else time_of(time, "--time"),
        diff=_diff_of(diff),
        expected=None
        if expected_upper is None
        else frontier_of(expected_upper, "--expected-upper"),
        upper=None if upper is None else frontier_of(upper, "--upper"),
        delimiter="\t" if delimiter in ("tab", "\\t") else delimiter,
    )
    for file in asked.files:
        check_file(file)
    if not asked.files and sys.stdin is None:
        raise UsageError("standard input is closed, so there is nothing to read: name files")
    found = on_location(context, lambda location: _append(location, asked))
    lower, until = str(found.lower), str(found.upper)
    if choose_format(None, as_json=as_json) == "json":
        told: dict[str, Any] = {"shard": name, "updates": found.updates, "parts": found.parts}
        print_json({**told, "lower": _plain(found.lower), "upper": _plain(found.upper)})
    else:
        say(f"{count_text(found.updates, 'update')} appended; upper moved from {lower} to {until}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The arguments of an append, checked."""

    name: str
    files: list[Path]
    format: str
    time: int | None
    diff: int | None
    expected: Frontier | None
    upper: Frontier | None
    delimiter: str


async def _append(location: Location, asked: _Request) -> FeedReport:
    from tidelog.cli.shard.feed import RowTimes, feed
    from tidelog.cli.shard.input import UpdatesInput
    from tidelog.collection.formats.dialect import CsvDialect
    from tidelog.persist.states.transition import check_interval, check_not_finalized

    shard = await location.shards.find(asked.name)
    check_not_finalized(shard.state)
    shard.schema = schema_of(shard.state)
    lower = shard.state.upper_frontier if asked.expected is None else asked.expected
    if asked.upper is not None:
        check_interval(lower, asked.upper, rows=0)
    timed = RowTimes(time=asked.time, diff=asked.diff)
    dialect = CsvDialect(delimiter=asked.delimiter, multiline=True)
    reader = UpdatesInput(wanted=timed.columns(shard.schema), dialect=dialect)
    tables = reader.tables(asked.files, asked.format)
    return await feed(shard, tables, timed, expected=asked.expected, upper=asked.upper)


def _format_of(files: list[Path], given: str | None) -> str:
    if given is not None and given not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}, not {given!r}")
    told = {_ENDINGS.get(file.suffix.lower(), "json") for file in files}
    if given is None and len(told) > 1:
        raise UsageError(
            f"the files have several formats, {' and '.join(sorted(told))}: append each format "
            "separately, or pass --format"
        )
    return given or next(iter(told), "json")


def _diff_of(diff: int | None) -> int | None:
    if diff == 0:
        raise UsageError("--diff must be the number of copies to add (1) or remove (-1), not 0")
    if diff is not None and not -(2**63) <= diff < 2**63:
        raise UsageError(f"--diff must be a whole number of 64 bits, not {quoted(diff)}")
    return diff


def _plain(frontier: Frontier) -> int | None:
    return None if frontier.is_empty else frontier.time
