"""``tidelog log copy``: copy a log, with the same protocol or the other one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.log.messages import show_made
from tidelog.cli.log.options import (
    NewLog,
    SourceLog,
    Start,
    check_log,
    check_protocol,
    check_start,
)

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def copy(
    context: typer.Context,
    source: SourceLog,
    name: NewLog,
    *,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="slot|manifest",
            help="The protocol of the copy. The default is the protocol of SOURCE.",
        ),
    ] = None,
    start: Start = 0,
    as_json: AsJson = False,
) -> None:
    """Copy a log, with the same protocol or the other one.

    The records keep their positions and times. Hold SOURCE by a cursor or a pin if another process
    may collect it during the copy.
    """
    check_start(start)
    check_log(name)
    check_protocol(protocol)

    async def work(location: Location) -> LogInfo:
        made = await location.logs.copy(source, name, protocol=protocol, start=start)
        return await made.describe()

    show_made(on_location(context, work), f"a copy of {source!r}", as_json=as_json)
