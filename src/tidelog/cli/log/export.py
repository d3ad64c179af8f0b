"""``tidelog log export``: copy a log to another place, in the format of Chroma's wal3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.messages import range_text
from tidelog.cli.log.options import Start, check_log, check_place, check_start
from tidelog.cli.output import choose_format, print_json, say

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def export(
    context: typer.Context,
    name: LogName,
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="The place of the exported log: a path, file://, s3://, gs://, az://.",
        ),
    ],
    *,
    start: Start = 0,
    as_json: AsJson = False,
) -> None:
    """Copy the log NAME, of either protocol, to PLACE in the format of Chroma's wal3.

    NAME does not change. A log with streams cannot be exported, because wal3 has none.
    """
    from tidelog.store.urls import without_secrets

    check_start(start)
    check_log(name)
    check_place(place)
    # A URL may hold credentials, which must not be shown; a path may hold bytes that are no text.
    shown = without_secrets(place).encode(errors="backslashreplace").decode()

    async def work(location: Location) -> LogInfo:
        from tidelog.store.urls import open_store
        from tidelog.wal.opening import open_log

        await location.logs.export(name, place, start=start)
        # Read the written log back, so that the bounds shown are those of the stored copy.
        store = open_store(place, clock=location.clock)
        made = await open_log(store, name=name, clock=location.clock, writer="")
        return await made.describe()

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({**found.to_dict(), "to": shown})
    else:
        say(f"Exported the log {name!r} to {shown}, in wal3's format: {range_text(found)}.")
