"""``tidelog log rebuild``: make the lost manifest of a log again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.options import check_log
from tidelog.cli.log.told import tell_made
from tidelog.cli.output import say

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def rebuild(context: typer.Context, name: LogName, *, as_json: AsJson = False) -> None:
    """Make the lost manifest of a log again, from what its objects say of themselves.

    Only where it is missing: one that is damaged has to be moved away first. Cursors and pins stay.
    """
    check_log(name)

    async def work(location: Location) -> LogInfo:
        return await (await location.rebuild_log(name)).describe()

    tell_made(on_location(context, work), "rebuilt", as_json=as_json)
    say(f"Check it with: tidelog log scrub {name}")
