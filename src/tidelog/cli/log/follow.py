"""``tidelog log follow``: read a log's records as writers append them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.feed import write_records
from tidelog.cli.log.options import (
    Control,
    Format,
    Key,
    Start,
    Stream,
    check_start,
    choose_record_format,
    key_of,
    stream_id,
)
from tidelog.cli.output import say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location


def follow(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    new: Annotated[bool, typer.Option("--new", help="Only records appended from now on.")] = False,
    stream: Stream = None,
    key: Key = None,
    control: Control = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write records as writers append them, until the log is sealed or Ctrl-C."""
    check_start(start)
    if new and start:
        raise UsageError("--new and --from exclude each other: give one")
    chosen = choose_record_format(format, as_json=as_json)
    of_key = key_of(key)

    async def work(location: Location) -> None:
        log = await location.log(name)
        wanted = stream_id(stream)
        following = (await log.bounds()).next if new or start else 0
        if start > following:
            say(
                f"The log {name!r} ends before {start}; the next position is "
                f"{following}: waiting ..."
            )
        found = log.follow(following if new else start, stream=wanted, key=of_key, control=control)
        if wanted is not None and all(info.id != wanted for info in await log.streams()):
            say(f"The stream {stream!r} is not open: waiting for a writer that opens it ...")
        await write_records(found, chosen)

    on_location(context, work)
