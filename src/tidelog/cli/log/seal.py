"""``tidelog log seal``: end a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.options import check_log
from tidelog.cli.output import choose_format, print_json, say

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def seal(
    context: typer.Context,
    name: LogName,
    *,
    successor: Annotated[
        str, typer.Option(metavar="NAME", help="The log in which writers are to go on.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """End a log: it takes no more records, in any process, for ever."""
    if successor:
        check_log(successor)

    async def work(location: Location) -> LogInfo:
        log = await location.log(name)
        await log.seal(successor=successor)
        return await log.describe()

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found.to_dict())
    else:
        say(f"The log {name!r} is sealed: it ends before position {found.next}.")
