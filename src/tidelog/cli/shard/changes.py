"""``tidelog shard changes``: the updates of a shard after a time, also as writers append them."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import count_text, say
from tidelog.cli.read import write_all
from tidelog.cli.shard.opened import ShardName, schema_of, time_of
from tidelog.cli.shard.read import readable
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
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from tidelog.cli.shard.rows import ShardRows
    from tidelog.location import Location


def changes(
    context: typer.Context,
    name: ShardName,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show updates after this time (exclusive). The default is the shard's since.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show updates up to this time (inclusive). The default is upper - 1.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Continue with new updates until the shard is finished."),
    ] = False,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Write a shard's updates after a time, in the order of their times: _time, _diff, columns.

    The snapshot as of --since and these updates give the snapshot as of --until. With --follow, the
    command writes updates as they are committed, until Ctrl-C or the end of the shard.
    """
    destination = Destination(format, output, as_json=as_json)
    if follow and until is not None:
        raise UsageError("--follow and --until exclude each other: give one")
    if follow and output not in (None, "-"):
        raise UsageError(
            "--output writes a file that is complete, and --follow never completes one: pass "
            f"--until, or redirect standard output (> {output})"
        )
    asked = _Request(
        name=name,
        since=None if since is None else time_of(since, "--since"),
        until=None if until is None else time_of(until, "--until"),
        follow=follow,
        picked=picked_by(columns, where, limit),
        destination=destination,
    )
    on_location(context, lambda location: _changes(location, asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The arguments of the command, checked."""

    name: str
    since: int | None
    until: int | None
    follow: bool
    picked: OutputSelection
    destination: Destination


async def _changes(location: Location, asked: _Request) -> None:
    from tidelog.cli.shard.rows import ShardRows
    from tidelog.persist.read.snapshot import check_readable

    shard = await location.shards.find(asked.name)
    wanted = asked.picked.selection().check(schema_of(shard.state))
    first = asked.since if asked.since is not None else shard.state.since
    check_readable(shard.state, first or 0)
    first = first or 0
    rows = ShardRows(shard=shard, wanted=wanted)
    if asked.follow:
        found = _following(rows, first)
    else:
        last = readable(shard, asked.until, what="--until")
        if last < first:
            raise UsageError(
                "the range ends before it begins: pass an --until after --since",
                since=first,
                until=last,
            )
        found = rows.changes(first, last)
    limit = asked.picked.limit
    written = await write_all(
        found if limit is None else _first(found, limit),
        rows.change_schema,
        asked.destination,
        clock=location.clock,
        limit=limit,
        is_endless=asked.follow,
    )
    if asked.destination.format == "table":
        say(f"{count_text(written, 'update')} after {first}")


async def _first(
    updates: AsyncGenerator[pa.Table, None], limit: int
) -> AsyncGenerator[pa.Table, None]:
    """Yield the first ``limit`` updates."""
    async with aclosing(updates):
        while limit:
            piece = await anext(updates, None)
            if piece is None:
                return
            yield piece.slice(0, limit)
            limit = max(0, limit - piece.num_rows)


async def _following(rows: ShardRows, reached: int) -> AsyncGenerator[pa.Table, None]:
    """Yield updates as writers commit them: `Shard.listen`, with a choice of columns and rows."""
    from tidelog.core.frontier import TIME_MAX
    from tidelog.persist.read.snapshot import check_readable

    while True:
        state = await rows.shard.wait_for_upper(reached + 1)
        check_readable(state, reached)
        last = TIME_MAX if state.upper is None else state.upper - 1
        async with aclosing(rows.changes(reached, last)) as pieces:
            async for piece in pieces:
                yield piece
        if state.upper is None:
            return
        reached = last
