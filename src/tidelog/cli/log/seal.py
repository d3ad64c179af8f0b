"""``tidelog log seal``: end a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.options import check_log
from tidelog.cli.output import choose_format, print_json, say
from tidelog.errors import NoSuchLog, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def seal(
    context: typer.Context,
    name: LogName,
    *,
    successor: Annotated[
        str, typer.Option(metavar="NAME", help="The log that writers continue in.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """End a log for good: no process can append to it."""
    if successor:
        check_log(successor)
    if successor == name:
        raise UsageError(f"the log {name!r} cannot be its own successor: name another log")

    async def work(location: Location) -> LogInfo:
        log = await location.log(name)
        if successor:
            await _check_there(location, successor, before=name)
        await log.seal(successor=successor)
        return await log.describe()

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found.to_dict())
    else:
        say(f"Sealed the log {name!r}: it ends before position {found.next}.")


async def _check_there(location: Location, successor: str, *, before: str) -> None:
    try:
        await location.log(successor)
    except NoSuchLog as error:
        raise UsageError(
            f"no log named {successor!r} to be the successor; {before!r} was not sealed: create "
            f"it first (tidelog log create {successor})"
        ) from error
