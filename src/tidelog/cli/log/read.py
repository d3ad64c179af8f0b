"""``tidelog log scan`` and ``follow``: read the records of a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName
from tidelog.cli.log.holds import with_pins
from tidelog.cli.log.options import (
    Control,
    Key,
    Start,
    Stream,
    To,
    check_range,
    check_start,
    key_of,
    on_log,
    stream_id,
)
from tidelog.cli.output import say, shown_rows
from tidelog.cli.records import (
    Format,
    FromTime,
    New,
    check_rows,
    choose_record_format,
    time_us_of,
    write_records,
)
from tidelog.errors import NoSuchStream, UsageError

if TYPE_CHECKING:
    from tidelog.wal.log import Log
    from tidelog.wal.read.limits import Limits

Records = Annotated[int | None, typer.Option("--limit", metavar="N", help="At most N records.")]
ToTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Stop before the first record of this time or later, written as for --from-time.",
    ),
]
FromPin = Annotated[
    str | None, typer.Option(metavar="PIN", help="Only the records that this pin holds.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """The range and the filters of a scan.

    ``from_time_us`` means the first position of that time or later.
    """

    start: int
    limit: int | None
    from_time_us: int | None
    limits: Limits | None
    stream: bytes | None
    key: bytes | None
    control: bool

    @property
    def is_all(self) -> bool:
        """Return True if the range has all positions of the log."""
        return not self.start and not (self.limit or self.from_time_us or self.limits)


def scan(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    to: To = None,
    records: Records = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    stream: Stream = None,
    key: Key = None,
    pin: FromPin = None,
    control: Control = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write the present records of a log, in order."""
    check_range(start, to)
    others = (to, records, from_time, to_time, stream, key, control or None)
    if pin is not None and (start or any(other is not None for other in others)):
        raise UsageError("--pin reads all records of the pin: omit the other options")
    if start and from_time is not None:
        raise UsageError("--from and --from-time exclude each other: pass one")
    check_rows(records)
    chosen = choose_record_format(format, as_json=as_json)
    within = ScanRange(
        start=start,
        limit=to,
        from_time_us=None if from_time is None else time_us_of(from_time, "--from-time"),
        limits=_limits(records or None, to_time),
        stream=stream_id(stream),
        key=key_of(key),
        control=control,
    )

    async def work(log: Log) -> None:
        if pin is not None:
            held = with_pins(log).scan_pin(pin)
            await write_records(shown_rows(held, chosen, None), chosen)
        elif records != 0:
            await _scan(log, within, chosen=chosen, most=records)

    on_log(context, name, work)


async def _scan(log: Log, within: ScanRange, *, chosen: str, most: int | None) -> None:
    start, limit = within.start, within.limit
    if within.from_time_us is not None:
        start = await log.position_at(within.from_time_us)
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


def _limits(records: int | None, to_time: str | None) -> Limits | None:
    from tidelog.wal.read.limits import Limits

    if records is None and to_time is None:
        return None
    to_time_us = None if to_time is None else time_us_of(to_time, "--to-time")
    return Limits(records=records, to_time_us=to_time_us)


def follow(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    new: New = False,
    stream: Stream = None,
    key: Key = None,
    control: Control = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write records as writers append them, until the log is sealed or Ctrl-C."""
    check_start(start)
    if new and start:
        raise UsageError("--new and --from exclude each other: pass one")
    chosen = choose_record_format(format, as_json=as_json)
    of_key = key_of(key)

    async def work(log: Log) -> None:
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

    on_log(context, name, work)
