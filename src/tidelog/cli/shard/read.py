"""``tidelog shard read`` and ``changes``: the contents of a shard, and its updates."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, Timeout, Wait, timeout_us_of
from tidelog.cli.output import first_rows
from tidelog.cli.shard.arguments import ShardName, on_shard, schema_of, time_of
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
from tidelog.errors import AsOfNotComplete, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from tidelog.cli.shard.rows import ShardRows
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
    wait: Wait = False,
    timeout: Timeout = None,
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
    The command reads only the columns that it needs, and skips row groups in which, by their
    Parquet statistics, no row meets --where. Values have the form of tidelog read.
    """
    to = Destination(format, output, as_json=as_json, columns=columns, where=where, limit=limit)
    time_asked = None if as_of is None else time_of(as_of, "--as-of")
    timeout_us = timeout_us_of(timeout)

    async def work(shard: Shard) -> None:
        from tidelog.cli.shard.rows import ShardRows

        wanted = to.selection().check(schema_of(shard.state))
        if wait or timeout_us is not None:
            await shard.wait_for_upper(time_asked or 0, wait=wait, timeout_us=timeout_us)
        time = readable(shard, time_asked)
        shard.report_before_data(time)
        rows = ShardRows(shard=shard, wanted=wanted, consolidated=consolidated)
        found, told = rows.contents(time), f"as of {time}"
        await write_all(found, rows.schema, to, clock=shard.clock, unit="row", told=told)

    on_shard(context, name, work)


def readable(shard: Shard, as_of: int | None, *, what: str = "--as-of") -> int:
    """Return the time to read: ``as_of``, or by default the newest complete time.

    Raises:
        AsOfNotComplete: the shard is not complete at the time.
        AsOfBeforeSince: the time is no longer readable.
        UsageError: the shard is finished, so it has no newest time.
    """
    upper = shard.state.upper_frontier
    if as_of is None:
        if upper.is_empty and shard.state.is_dropped:
            shard.state.check_readable(0)
        if upper.is_empty:
            raise UsageError(f"the shard is finished: pass the time to read in {what}")
        if not upper.time:
            raise AsOfNotComplete("the shard has no complete time yet: append to it first")
        return upper.time - 1
    shard.state.check_readable(as_of)
    if not upper.passed(as_of):
        raise AsOfNotComplete(
            f"the shard is complete up to {upper.time - 1}: pass a time up to {upper.time - 1}"
            if upper.time
            else "the shard has no complete time yet: append to it first",
            asked=as_of,
        )
    return as_of


def changes(
    context: typer.Context,
    name: ShardName,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show updates after this time (exclusive). The default is the earliest readable "
            "time.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show updates up to this time (inclusive). The default is the newest complete "
            "time.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Continue with new updates, until Ctrl-C or the end of the shard."
        ),
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
    command writes updates as they are committed. A shard ends with 'shard append --upper end'.
    """
    to = Destination(format, output, as_json=as_json, columns=columns, where=where, limit=limit)
    if follow:
        check_follow(until, output)
    after = None if since is None else time_of(since, "--since")
    up_to = None if until is None else time_of(until, "--until")

    async def work(shard: Shard) -> None:
        from tidelog.cli.shard.rows import ShardRows

        rows = ShardRows(shard=shard, wanted=to.selection().check(schema_of(shard.state)))
        first = after if after is not None else shard.state.since or 0
        shard.state.check_readable(first)
        if follow:
            found = _following(rows, first)
        else:
            found = rows.changes(first, _last_of(shard, first, up_to))
        await write_all(
            first_rows(found, limit),
            rows.change_schema,
            to,
            clock=shard.clock,
            unit="update",
            told=f"after {first}",
            is_endless=follow,
        )

    on_shard(context, name, work)


def _last_of(shard: Shard, first: int, until: int | None) -> int:
    last = readable(shard, until, what="--until")
    if last < first and until is None:
        raise AsOfNotComplete(
            f"the shard is complete up to {last}: pass a --since up to {last}", asked=first
        )
    if last < first:
        raise UsageError(
            "the range ends before it begins: pass an --until after --since",
            since=first,
            until=last,
        )
    return last


async def _following(rows: ShardRows, reached: int) -> AsyncGenerator[pa.Table, None]:
    """Yield updates as writers commit them: `Shard.listen`, with a choice of columns and rows."""
    from tidelog.core.frontier import TIME_MAX

    while True:
        state = await rows.shard.wait_for_upper(reached + 1)
        state.check_readable(reached)
        last = TIME_MAX if state.upper is None else state.upper - 1
        async with aclosing(rows.changes(reached, last)) as pieces:
            async for piece in pieces:
                yield piece
        if state.upper is None:
            return
        reached = last
