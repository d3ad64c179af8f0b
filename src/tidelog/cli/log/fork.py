"""``tidelog log fork``: create a log that shares the records and objects of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.log.messages import show_made
from tidelog.cli.log.options import NewLog, SourceLog, Start, check_log, check_start

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def fork(
    context: typer.Context,
    source: SourceLog,
    name: NewLog,
    *,
    start: Start = 0,
    as_json: AsJson = False,
) -> None:
    """Create a log that begins with the records of SOURCE, and shares its objects.

    Nothing is copied. Later appends to one do not change the other. SOURCE cannot be dropped
    before its forks. NAME has letters, digits and _ only.
    """
    from tidelog.wal.format.pin import check_pin_name

    check_start(start)
    check_log(name)
    check_pin_name(name, of="fork")  # A pin with the fork's name holds the shared records.

    async def work(location: Location) -> LogInfo:
        return await (await location.logs.fork(source, name, start=start)).describe()

    show_made(on_location(context, work), f"a fork of {source!r}", as_json=as_json)
