"""``tidelog log scan``: read the records that a log has now, or that a pin holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.feed import write_records
from tidelog.cli.log.options import Control, Format, Start, Stream, check_start, stream_id
from tidelog.cli.log.pin import log_with_pins
from tidelog.cli.output import choose_format
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.read.limits import Limits


def scan(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "--records", metavar="N", help="At most so many records."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop before the first record of this time or later."),
    ] = None,
    stream: Stream = None,
    pin: Annotated[
        str | None, typer.Option(metavar="PIN", help="The records that this pin holds, alone.")
    ] = None,
    control: Control = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write the records that there are now, in order."""
    check_start(start)
    others = (limit, until, stream, control or None)
    if pin is not None and (start or any(other is not None for other in others)):
        raise UsageError("--pin reads all that the pin holds: leave the other options out")
    if limit is not None and limit < 0:
        raise UsageError(f"--limit {limit} is no number of records")
    chosen = "raw" if format == "raw" else choose_format(format, as_json=as_json)
    limits = _limits(limit or None, until)

    async def work(location: Location) -> None:
        log = await location.log(name)
        if pin is not None:
            await write_records((await log_with_pins(location, name)).scan_pin(pin), chosen)
            return
        found = log.scan(start, limits=limits, stream=stream_id(stream), control=control)
        if limit != 0:
            await write_records(found, chosen)

    on_location(context, work)


def _limits(records: int | None, until: str | None) -> Limits | None:
    from tidelog.collection.times import parse_time
    from tidelog.wal.read.limits import Limits

    if records is None and until is None:
        return None
    until_us = None if until is None else parse_time(until, what="--until") * 1_000
    return Limits(records=records, until_us=until_us)
