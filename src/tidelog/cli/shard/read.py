"""``tidelog shard read``: the contents of a shard as of a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import count_text, say
from tidelog.cli.read import write_all
from tidelog.cli.shard.opened import ShardName, schema_of, time_of
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
from tidelog.errors import AsOfNotComplete, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.persist.handle.shard import Shard


def read(
    context: typer.Context,
    name: ShardName,
    *,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The time to read. The default is the newest complete time, upper - 1.",
        ),
    ] = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    consolidated: Annotated[
        bool, typer.Option("--consolidated", help="Write equal rows once, with their count.")
    ] = False,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Write the contents of a shard as of a time, in the order of the key.

    A row that occurs several times is repeated, with a _diff of 1 each. With --consolidated, it is
    written once, and _diff is its count; with --columns as well, equal rows may still repeat.
    Columns, conditions and limits are pushed down to the statistics of parts. Values have the form
    of tidelog read.
    """
    destination = Destination(format, output, as_json=as_json)
    time = None if as_of is None else time_of(as_of, "--as-of")
    picked = picked_by(columns, where, limit)
    asked = _Request(name, time, picked, destination, consolidated=consolidated)
    on_location(context, lambda location: _read(location, asked))


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of a read, checked."""

    name: str
    as_of: int | None
    picked: OutputSelection
    destination: Destination
    consolidated: bool


async def _read(location: Location, asked: _Request) -> None:
    from tidelog.cli.shard.rows import ShardRows

    shard = await location.shards.find(asked.name)
    wanted = asked.picked.selection().check(schema_of(shard.state))
    time = readable(shard, asked.as_of)
    shard.report_before_data(time)
    rows = ShardRows(shard=shard, wanted=wanted, consolidated=asked.consolidated)
    written = await write_all(
        rows.contents(time),
        rows.schema,
        asked.destination,
        clock=location.clock,
        limit=asked.picked.limit,
    )
    if asked.destination.format == "table":
        say(f"{count_text(written, 'row')} as of {time}")


def readable(shard: Shard, as_of: int | None, *, what: str = "--as-of") -> int:
    """Return the time to read: ``as_of``, or by default the newest complete time.

    Raises:
        AsOfNotComplete: the shard is not complete at the time.
        AsOfBeforeSince: the time is no longer readable.
        UsageError: the shard is finished, so it has no newest time.
    """
    from tidelog.persist.read.snapshot import check_readable

    upper = shard.state.upper_frontier
    if as_of is None:
        if upper.is_empty and shard.state.is_buried:
            check_readable(shard.state, 0)
        if upper.is_empty:
            raise UsageError(f"the shard is finished: pass the time to read in {what}")
        if not upper.time:
            raise AsOfNotComplete("the shard has no complete time yet: append to it first")
        return upper.time - 1
    check_readable(shard.state, as_of)
    if not upper.passed(as_of):
        raise AsOfNotComplete(
            f"the shard is complete up to {upper.time - 1}: pass a time up to {upper.time - 1}"
            if upper.time
            else "the shard has no complete time yet: append to it first",
            asked=as_of,
        )
    return as_of
