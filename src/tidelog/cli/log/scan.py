"""``tidelog log scan``: read the present records of a log, or the records that a pin holds."""

from __future__ import annotations

from dataclasses import dataclass
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
    check_range,
    choose_record_format,
    key_of,
    stream_id,
    time_us_of,
)
from tidelog.cli.log.pin import log_with_pins
from tidelog.cli.output import say
from tidelog.cli.shown_rows import shown_rows
from tidelog.errors import NoSuchStream, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.log import Log
    from tidelog.wal.read.limits import Limits

To = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="POSITION", help="Stop before this position. The default is the end."
    ),
]
Records = Annotated[int | None, typer.Option("--limit", metavar="N", help="At most N records.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Start at the first record of this time or later: ISO 8601, now, yesterday, -1h, or "
        "microseconds since 1970.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Stop before the first record of this time or later, written as for --since.",
    ),
]
FromPin = Annotated[
    str | None, typer.Option(metavar="PIN", help="Only the records that this pin holds.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """The range and the filters of a scan.

    ``since_us`` means the first position of that time or later.
    """

    start: int
    limit: int | None
    since_us: int | None
    limits: Limits | None
    stream: bytes | None
    key: bytes | None
    control: bool

    @property
    def is_all(self) -> bool:
        """Return True if the range has all positions of the log."""
        return not self.start and not (self.limit or self.since_us or self.limits)


def scan(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    to: To = None,
    records: Records = None,
    since: Since = None,
    until: Until = None,
    stream: Stream = None,
    key: Key = None,
    pin: FromPin = None,
    control: Control = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write the present records of a log, in order."""
    check_range(start, to)
    others = (to, records, since, until, stream, key, control or None)
    if pin is not None and (start or any(other is not None for other in others)):
        raise UsageError("--pin reads all records of the pin: leave the other options out")
    if start and since is not None:
        raise UsageError("--from and --since exclude each other: give one")
    if records is not None and records < 0:
        raise UsageError(f"--limit must be 0 or more, not {records}")
    chosen = choose_record_format(format, as_json=as_json)
    wanted = key_of(key)
    within = ScanRange(
        start=start,
        limit=to,
        since_us=None if since is None else time_us_of(since, "--since"),
        limits=_limits(records or None, until),
        stream=stream_id(stream),
        key=wanted,
        control=control,
    )

    async def work(location: Location) -> None:
        log = await location.log(name)
        if pin is not None:
            held = (await log_with_pins(location, name)).scan_pin(pin)
            await write_records(shown_rows(held, chosen, None), chosen)
        elif records != 0:
            await _scan(log, within, chosen=chosen, most=records)

    on_location(context, work)


async def _scan(log: Log, within: ScanRange, *, chosen: str, most: int | None) -> None:
    start, limit = within.start, within.limit
    if within.since_us is not None:
        start = await log.position_at(within.since_us)
        limit = None if limit is None else max(start, limit)
    found = log.scan(
        start,
        limit=limit,
        limits=within.limits,
        stream=within.stream,
        key=within.key,
        control=within.control,
    )
    count = await write_records(shown_rows(found, chosen, most), chosen)
    stream = within.stream
    if not count and stream is not None and within.key is None:
        await _tell_of_stream(log, stream, within)


async def _tell_of_stream(log: Log, stream: bytes, within: ScanRange) -> None:
    """Warn that a stream without records is also not open: its name may be misspelt.

    Raises:
        NoSuchStream: the scan read the whole log, so it has no record of the stream.
    """
    if any(info.id == stream for info in await log.streams()):
        return
    shown = stream.decode(errors="backslashreplace")
    told = f"no records of the stream {shown!r} in this range, and it is not open"
    if within.is_all:
        raise NoSuchStream(f"{told}: see the open streams with tidelog log stream list {log.name}")
    say(f"tidelog: {told}")


def _limits(records: int | None, until: str | None) -> Limits | None:
    from tidelog.wal.read.limits import Limits

    if records is None and until is None:
        return None
    until_us = None if until is None else time_us_of(until, "--until")
    return Limits(records=records, until_us=until_us)
