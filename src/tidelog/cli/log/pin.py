"""``tidelog log pin``: ranges of a log that stay readable after collections."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.options import check_range
from tidelog.cli.output import (
    Column,
    choose_format,
    count_text,
    print_json,
    print_listing,
    say,
    time_text,
)
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.format.pin import Pin
    from tidelog.wal.log import Log

PinName = Annotated[
    str, typer.Argument(metavar="PIN", help="The name of a pin: letters, digits and _.")
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Pins: keep a range of records readable after collections.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinInfo:
    """A pin as the command shows it: positions ``[start, limit)``, and the fork that uses it."""

    log: str
    pin: str
    start: int
    limit: int
    records: int
    holder: str | None
    is_sure: bool
    made_us: int


@app.command("list")
def list_pins(context: typer.Context, name: LogName, as_json: AsJson = False) -> None:
    """List a log's pins, and the records that each keeps."""

    async def work(location: Location) -> list[PinInfo]:
        return await pins_of(await log_with_pins(location, name))

    columns: tuple[Column[PinInfo], ...] = (
        Column("pin", lambda one: one.pin),
        Column("from", lambda one: f"{one.start:,}", right=True),
        Column("to", lambda one: f"{one.limit - 1:,}", right=True),
        Column("records", lambda one: f"{one.records:,}", right=True),
        Column("for", lambda one: f"the fork {one.holder}" if one.holder else ""),
        Column("state", lambda one: "holds" if one.is_sure else "not finished"),
        Column("created", lambda one: time_text(one.made_us), whole=True),
    )
    print_listing(
        on_location(context, work),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"No pins. Create one: tidelog log pin create {name} PIN",
    )


@app.command("create")
def create(
    context: typer.Context,
    name: LogName,
    pin: PinName,
    *,
    start: Annotated[
        int,
        typer.Option(
            "--from", metavar="POSITION", help="The first position. The default is the oldest."
        ),
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="POSITION", help="Stop before this position. The default is the end."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pin records: 'scan --pin' can read them until the pin is dropped."""
    _check_pin(pin)
    check_range(start, limit)

    async def work(location: Location) -> PinInfo:
        log = await log_with_pins(location, name)
        return _info_of(name, pin, (await log.create_pin(pin, start=start, limit=limit)).pin)

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(asdict(found))
    else:
        held = count_text(found.records, "record")
        say(
            f"The pin {pin!r} holds {held}, positions {found.start:,} to {found.limit - 1:,}."
            f" Read them with: tidelog log scan {name} --pin {pin}"
        )


@app.command("drop")
def drop(
    context: typer.Context,
    name: LogName,
    pin: PinName,
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Drop even the pin of a fork, which loses its records."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a pin; the next collection deletes the records that only this pin kept."""
    _check_pin(pin)

    async def work(location: Location) -> None:
        await (await log_with_pins(location, name)).drop_pin(pin, force=force)

    on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "dropped": pin})
    else:
        say(f"Dropped the pin {pin!r}. To delete its records: tidelog log collect {name}")


async def log_with_pins(location: Location, name: str) -> Log:
    """Open a log that can have pins.

    Raises:
        UsageError: the log has the protocol manifest (wal3), which has no pins.
        NoSuchLog: the log does not exist.
    """
    log = await location.log(name)
    if log.protocol == "manifest":
        raise UsageError(
            f"the log {name!r} has wal3's format, which has no pins: create a cursor, or copy the "
            "log with --protocol slot"
        )
    return log


async def pins_of(log: Log) -> list[PinInfo]:
    """Return descriptions of a log's pins, sorted by name."""
    return [_info_of(log.name, *named) for named in sorted((await log.pins()).items())]


def _info_of(log: str, name: str, pin: Pin) -> PinInfo:
    return PinInfo(
        log=log,
        pin=name,
        start=pin.start,
        limit=pin.limit,
        records=pin.limit - pin.start,
        holder=pin.holder or None,
        is_sure=pin.is_sure,
        made_us=pin.epoch_us,
    )


def _check_pin(name: str) -> None:
    from tidelog.wal.format.pin import check_pin_name

    check_pin_name(name)
