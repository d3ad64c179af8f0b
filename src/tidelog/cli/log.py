"""``tidelog log``: make logs, append to them, read them, and see what is in them."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli import log_stream
from tidelog.cli.command import AsJson, LogName, location_url, on_location
from tidelog.cli.feed import Appended, Feed, write_records
from tidelog.cli.late_spark import check_installed, scrub_on_spark
from tidelog.cli.output import (
    Column,
    bytes_text,
    choose_format,
    count_text,
    print_json,
    print_listing,
    say,
    write_text,
)
from tidelog.errors import NoSuchLog, TidelogError, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.log import Log
    from tidelog.wal.read.limits import Limits

Start = Annotated[
    int, typer.Option("--from", metavar="POSITION", help="The first record; by default the oldest.")
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="table|json|csv|raw",
        help="raw: bodies alone, a line each. By default a table on a terminal, else JSON lines.",
    ),
]

Stream = Annotated[
    str | None, typer.Option("--stream", metavar="STREAM", help="Only this stream of the log.")
]
Control = Annotated[
    bool, typer.Option("--control", help="Also the records that open and close streams.")
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Logs: append, read, check.")
app.add_typer(log_stream.app, name="stream")


class LogBroken(TidelogError):
    """A scrub found something wrong."""

    kind = "corruption"


@app.command("create")
def create(
    context: typer.Context,
    name: LogName,
    *,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="slot|manifest",
            help="slot: one round trip an append. manifest: as Chroma's wal3 writes it.",
        ),
    ] = "slot",
    as_json: AsJson = False,
) -> None:
    """Make a log, and the location if there is none."""
    from tidelog.location import open_location

    url = location_url(context)

    async def work() -> dict[str, Any]:
        location = await open_location(url, create=True)
        log = await location.create_log(name, protocol=protocol)
        return await log.describe()

    found = asyncio.run(work())
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        say(f"Created the log {name!r}. Append to it with: tidelog log append {name} < LINES")


@app.command("append")
def append(
    context: typer.Context,
    name: LogName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files of lines; by default standard input."),
    ] = None,
    *,
    whole: Annotated[
        bool, typer.Option("--whole", help="Append each file as one record, not its lines.")
    ] = False,
    stream: Annotated[
        str | None,
        typer.Option("--stream", metavar="STREAM", help="To this stream, which must be open."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Append lines, each a record, and say where they are once all are durable.

    What was read is sent as it comes; whatever was acknowledged before an error stays.
    """
    if whole and not files:
        raise UsageError("--whole wants files: name them")
    for file in files or ():
        if not file.is_file():
            raise UsageError(f"there is no file {str(file)!r}")

    async def work(location: Location) -> Appended:
        async with await location.log(name) as log:
            feed = Feed(log, _stream_id(stream))
            try:
                return await (feed.whole if whole else feed.lines)(files or [])
            except TidelogError:
                say(f"{count_text(feed.done.records, 'record')} had been appended before it failed")
                raise

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **asdict(found)})
    elif found.records:
        told = count_text(found.records, "record")
        say(f"{told} appended, positions {found.first} to {found.last}")
    else:
        say("There was nothing to append.")


@app.command("scan")
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
        found = log.scan(start, limits=limits, stream=_stream_id(stream), control=control)
        if limit != 0:
            await write_records(found, chosen)

    on_location(context, work)


@app.command("follow")
def follow(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    new: Annotated[bool, typer.Option("--new", help="Only what comes from now on.")] = False,
    stream: Stream = None,
    control: Control = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write records as they come, until interrupted or the log is sealed."""
    check_start(start)
    if new and start:
        raise UsageError("--new and --from exclude each other: give one")
    chosen = "raw" if format == "raw" else choose_format(format, as_json=as_json)

    async def work(location: Location) -> None:
        log = await location.log(name)
        first = (await log.bounds()).next if new else start
        found = log.follow(first, stream=_stream_id(stream), control=control)
        await write_records(found, chosen)

    on_location(context, work)


@app.command("list")
def list_logs(context: typer.Context, as_json: AsJson = False) -> None:
    """List the logs, and what is in them."""
    columns = (
        Column("name", lambda one: one["name"]),
        Column("protocol", lambda one: one["protocol"]),
        Column("records", lambda one: f"{one['records']:,}", right=True),
        Column("bytes", lambda one: bytes_text(one["bytes"]), right=True),
        Column("oldest", lambda one: str(one["oldest"]), right=True),
        Column("next", lambda one: str(one["next"]), right=True),
        Column("sealed", lambda one: "yes" if one.get("sealed") else ""),
    )
    print_listing(
        on_location(context, _describe_all),
        columns,
        as_json=as_json,
        none_yet="There are no logs yet: 'tidelog log create NAME' makes one.",
    )


@app.command("scrub")
def scrub(
    context: typer.Context,
    name: LogName,
    *,
    start: Start = 0,
    limit: Annotated[
        int | None,
        typer.Option("--to", metavar="POSITION", help="Stop before this one; by default no limit."),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Read and check records in Spark's executors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read all that is stored and check it; every problem is told, not the first alone.

    With --from or --to only that range is read, and no cursors, and nothing the log does not name.
    """
    check_start(start)
    if limit is not None and limit <= start:
        raise UsageError(f"--to {limit} leaves no position after --from {start}")
    if spark:
        check_installed(instead="leave --spark out")
        if start or limit is not None:
            raise UsageError("Spark scrubs a whole log: leave --from and --to out, or --spark")

    async def work(location: Location) -> dict[str, Any]:
        log = await location.log(name)
        # A name that is wrong is told before Spark has been waited for.
        return {} if spark else (await log.scrub(start, limit=limit)).to_dict()

    found = on_location(context, work)
    if spark:
        found = scrub_on_spark(location_url(context), name).to_dict()
    problems = found["problems"]
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        for problem in problems:
            write_text(f"{problem['path']}: {problem['why']}\n")
        read = count_text(found["records"], "record"), count_text(found["fragments"], "object")
        say(
            f"{read[0]} in {read[1]} read, {bytes_text(found['bytes_read'])}; "
            f"{count_text(len(problems), 'problem')}; "
            f"{count_text(len(found['unnamed']), 'object')} that the log does not name"
        )
    if problems:
        raise LogBroken(f"the log {name!r} is damaged: restore the objects that are named above")


@app.command("seal")
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

    async def work(location: Location) -> dict[str, Any]:
        from tidelog.ids import check_name

        if successor:
            check_name(successor, of="name of a log")
        log = await location.log(name)
        await log.seal(successor=successor)
        return await log.describe()

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        say(f"The log {name!r} is sealed: it ends before position {found['next']}.")


async def _describe(location: Location, name: str) -> dict[str, Any]:
    return await (await location.log(name)).describe()


async def _describe_all(location: Location) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in await location.logs():
        with suppress(NoSuchLog):  # It was destroyed.
            found.append(await _describe(location, name))
    return found


async def log_with_pins(location: Location, name: str) -> Log:
    """Open a log that can have pins.

    Raises:
        UsageError: it is in wal3's form. NoSuchLog: there is none.
    """
    log = await location.log(name)
    if log.protocol == "manifest":
        raise UsageError(
            f"the log {name!r} is in wal3's form, which has no pins: hold it by a cursor, or copy "
            "it with --protocol slot"
        )
    return log


def _stream_id(stream: str | None) -> bytes | None:
    # As the shell gave it: ids are bytes, and need not be text.
    return None if stream is None else os.fsencode(stream)


def _limits(records: int | None, until: str | None) -> Limits | None:
    from tidelog.collection.times import parse_time
    from tidelog.wal.read.limits import Limits

    if records is None and until is None:
        return None
    until_us = None if until is None else parse_time(until, what="--until") * 1_000
    return Limits(records=records, until_us=until_us)


def check_start(start: int) -> None:
    """Refuse what is no position; 0 stands for the oldest.

    Raises:
        UsageError: it is none.
    """
    if start < 0:
        raise UsageError(f"--from {start} is no position: they count from 1")
