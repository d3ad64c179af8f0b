"""``tidelog log rebuild``: write a lost manifest again, from the objects of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.messages import show_made
from tidelog.cli.log.options import check_log
from tidelog.cli.output import say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def rebuild(
    context: typer.Context,
    name: LogName,
    *,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="The first position of the log. Earlier ones count as collected.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a lost manifest of a log again, from the objects of the log.

    The manifest must be missing: move a damaged one away first. Cursors and pins stay. If the
    collection plan is lost as well, pass in --from the first position since which no object is
    missing.
    """
    check_log(name)
    if start is not None and start < 1:
        raise UsageError(f"--from {start} is not a position: positions begin at 1")

    async def work(location: Location) -> LogInfo:
        return await (await location.logs.rebuild(name, start=start)).describe()

    show_made(on_location(context, work), "rebuilt", as_json=as_json)
    say(f"Check it with: tidelog log scrub {name}")
