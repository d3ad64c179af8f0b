"""``tidelog log cursor`` and ``tidelog log pin``: keep records of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, group
from tidelog.cli.log.options import Start, To, check_range, on_log
from tidelog.cli.output import Column, count_text, say, show, show_list, time_text
from tidelog.cli.records import time_us_of
from tidelog.core.arguments import DIGITS_MAX
from tidelog.errors import CursorMoved, NameTaken, NoSuchCursor, UsageError

if TYPE_CHECKING:
    from tidelog.wal.format.cursor import Cursor
    from tidelog.wal.format.pin import Pin
    from tidelog.wal.log import Log

CursorName = Annotated[
    str, typer.Argument(metavar="CURSOR", help="The name of a cursor: letters, digits and _.")
]
At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="POSITION",
        help="A position, oldest (the first stored record), next (after the last record), "
        "or a time such as 2013-01-15T14:00:00Z, yesterday or -7d (the first record "
        "since then).",
    ),
]

cursor_app = group("Cursors: the log keeps all records since the lowest cursor.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorInfo:
    """A cursor as the command shows it; ``records`` counts the records since its position."""

    log: str
    cursor: str
    position: int
    records: int
    saved_us: int
    writer: str


@cursor_app.command("list")
def list_cursors(context: typer.Context, name: LogName, as_json: AsJson = False) -> None:
    """List a log's cursors, and the number of records that each keeps."""

    async def work(log: Log) -> tuple[list[CursorInfo], list[str]]:
        listed = await log.cursors()
        return await cursors_of(log, listed.cursors), listed.foreign

    found, foreign = on_log(context, name, work)
    columns: tuple[Column[CursorInfo], ...] = (
        Column("cursor", lambda one: one.cursor),
        Column("position", lambda one: f"{one.position:,}", right=True),
        Column("holds", lambda one: count_text(one.records, "record"), right=True),
        Column("saved", lambda one: time_text(one.saved_us), whole=True),
        Column("by", lambda one: one.writer),
    )
    show_list(
        found,
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet="No cursors, so nothing is ever collected. Create one: "
        f"tidelog log cursor create {name} CURSOR",
    )
    for key in foreign:
        say(f"{key} is in the folder of cursors, but is not a cursor.")


@cursor_app.command("create")
def create_cursor(
    context: typer.Context,
    name: LogName,
    cursor: CursorName,
    *,
    at: At = "oldest",
    as_json: AsJson = False,
) -> None:
    """Create a cursor: the log keeps the records at and after its position."""
    _check_cursor(cursor)
    _check_at(at)

    async def work(log: Log) -> CursorInfo:
        try:
            made = await log.create_cursor(cursor, await _position(log, at))
        except CursorMoved as error:
            raise NameTaken(
                f"the log {name!r} has a cursor {cursor!r} already: move it, or choose another name"
            ) from error
        return await _info(log, cursor, made.cursor)

    found = on_log(context, name, work)
    _show(found, asdict(found), f"Created the cursor {cursor!r} at", as_json=as_json)


@cursor_app.command("move")
def move_cursor(
    context: typer.Context,
    name: LogName,
    cursor: CursorName,
    *,
    at: At,
    back: Annotated[
        bool, typer.Option("--back", help="Allow an earlier position than the present one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Move a cursor: 'log collect' may then erase the records before its position."""
    _check_cursor(cursor)
    _check_at(at)

    async def work(log: Log) -> tuple[int, CursorInfo]:
        present = await log.load_cursor(cursor)
        position = await _position(log, at)
        if position < present.position and not back:
            raise UsageError(
                f"the cursor {cursor!r} is at {present.position}, and {position} is before it: "
                "pass --back to move it back"
            )
        moved = await log.move_cursor(present, position, allow_back=back)
        return present.position, await _info(log, cursor, moved.cursor)

    before, found = on_log(context, name, work)
    fields = {**asdict(found), "from": before}
    _show(found, fields, f"Moved the cursor {cursor!r} to", as_json=as_json)


@cursor_app.command("drop")
def drop_cursor(
    context: typer.Context, name: LogName, cursor: CursorName, *, as_json: AsJson = False
) -> None:
    """Drop a cursor: the log no longer keeps records for it."""
    _check_cursor(cursor)

    async def work(log: Log) -> list[str]:
        left = set((await log.cursors()).cursors)
        if cursor not in left:
            raise NoSuchCursor(f"the log {name!r} has no cursor {cursor!r}")
        await log.drop_cursor(cursor)
        return sorted(left - {cursor})

    left = on_log(context, name, work)
    rest = f"left: {', '.join(left)}" if left else "no cursor is left, so nothing is collected"
    told = f"Dropped the cursor {cursor!r}; {rest}."
    show({"log": name, "dropped": cursor, "left": left}, told, as_json=as_json)


async def cursors_of(log: Log, cursors: Mapping[str, Cursor]) -> list[CursorInfo]:
    """Return descriptions of a log's cursors, sorted by name."""
    bounds = await log.bounds()
    return [_info_of(log.name, *named, bounds.next) for named in sorted(cursors.items())]


async def _info(log: Log, name: str, cursor: Cursor) -> CursorInfo:
    return _info_of(log.name, name, cursor, (await log.bounds()).next)


def _info_of(log: str, name: str, cursor: Cursor, following: int) -> CursorInfo:
    return CursorInfo(
        log=log,
        cursor=name,
        position=cursor.position,
        records=following - cursor.position,
        saved_us=cursor.epoch_us,
        # The text after the name is a write id, which means nothing to people.
        writer=cursor.writer.partition(" ")[0],
    )


def _show(found: CursorInfo, fields: Mapping[str, object], what: str, *, as_json: bool) -> None:
    held = count_text(found.records, "record")
    show(fields, f"{what} {found.position:,}; it holds {held}.", as_json=as_json)


async def _position(log: Log, at: str) -> int:
    if at in ("oldest", "next"):
        bounds = await log.bounds()
        return bounds.oldest if at == "oldest" else bounds.next
    return int(at) if _is_number(at) else await log.position_at(time_us_of(at, "--at"))


def _check_at(at: str) -> None:
    if at in ("oldest", "next"):
        return
    if not _is_number(at):
        try:
            time_us_of(at, "--at")
        except UsageError as error:
            raise _no_place(at) from error
    elif len(at) > DIGITS_MAX or int(at) < 1:
        raise _no_place(at[:DIGITS_MAX])


def _is_number(at: str) -> bool:
    return at.removeprefix("-").isdecimal()


def _no_place(at: str) -> UsageError:
    return UsageError(
        f"--at {at} is not a position: positions begin at 1; or write oldest, next, or a time "
        "such as 2013-01-15T14:00:00Z"
    )


def _check_cursor(name: str) -> None:
    from tidelog.wal.format.cursor import cursor_path

    cursor_path(name)


PinName = Annotated[
    str, typer.Argument(metavar="PIN", help="The name of a pin: letters, digits and _.")
]

pin_app = group("Pins: 'log collect' keeps the records of a pin readable.")


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


@pin_app.command("list")
def list_pins(context: typer.Context, name: LogName, as_json: AsJson = False) -> None:
    """List a log's pins, and the records that each keeps."""
    columns: tuple[Column[PinInfo], ...] = (
        Column("pin", lambda one: one.pin),
        Column("from", lambda one: f"{one.start:,}", right=True),
        Column("to", lambda one: f"{one.limit - 1:,}", right=True),
        Column("records", lambda one: f"{one.records:,}", right=True),
        Column("for", lambda one: f"the fork {one.holder}" if one.holder else ""),
        Column("state", lambda one: "holds" if one.is_sure else "not finished"),
        Column("created", lambda one: time_text(one.made_us), whole=True),
    )
    show_list(
        on_log(context, name, lambda log: pins_of(with_pins(log))),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"No pins. Create one: tidelog log pin create {name} PIN",
    )


@pin_app.command("create")
def create_pin(
    context: typer.Context,
    name: LogName,
    pin: PinName,
    *,
    start: Start = 0,
    limit: To = None,
    as_json: AsJson = False,
) -> None:
    """Pin records: 'scan --pin' can read them until the pin is dropped."""
    _check_pin(pin)
    check_range(start, limit)

    async def work(log: Log) -> PinInfo:
        made = await with_pins(log).create_pin(pin, start=start, limit=limit)
        return _pin_info_of(name, pin, made.pin)

    found = on_log(context, name, work)
    held = count_text(found.records, "record")
    told = (
        f"The pin {pin!r} holds {held}, positions {found.start:,} to {found.limit - 1:,}."
        f" Read them with: tidelog log scan {name} --pin {pin}"
    )
    show(asdict(found), told, as_json=as_json)


@pin_app.command("drop")
def drop_pin(
    context: typer.Context,
    name: LogName,
    pin: PinName,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Drop even the pin of a fork: the fork then loses the records of the pin.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a pin; the next 'log collect' deletes the records that only this pin kept."""
    _check_pin(pin)
    on_log(context, name, lambda log: with_pins(log).drop_pin(pin, force=force))
    told = f"Dropped the pin {pin!r}. To delete its records: tidelog log collect {name}"
    show({"log": name, "dropped": pin}, told, as_json=as_json)


def with_pins(log: Log) -> Log:
    """Return the log if it can have pins.

    Raises:
        UsageError: the log has the protocol manifest (wal3), which has no pins.
    """
    if log.protocol == "manifest":
        raise UsageError(
            f"the log {log.name!r} is of the manifest protocol, which has no pins: create a "
            "cursor, or copy the log with --protocol slot"
        )
    return log


async def pins_of(log: Log) -> list[PinInfo]:
    """Return descriptions of a log's pins, sorted by name."""
    return [_pin_info_of(log.name, *named) for named in sorted((await log.pins()).items())]


def _pin_info_of(log: str, name: str, pin: Pin) -> PinInfo:
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
