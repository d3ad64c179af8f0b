"""``tidelog log cursor``: named positions; the log keeps all records since the lowest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.options import time_us_of
from tidelog.cli.output import (
    Column,
    choose_format,
    count_text,
    print_json,
    print_listing,
    say,
    time_text,
)
from tidelog.core.arguments import DIGITS_MAX
from tidelog.errors import CursorMoved, NameTaken, NoSuchCursor, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.format.cursor import Cursor
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

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Cursors: the log keeps all records since the lowest cursor.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorInfo:
    """A cursor as the command shows it; ``records`` counts the records since its position."""

    log: str
    cursor: str
    position: int
    records: int
    saved_us: int
    writer: str


@app.command("list")
def list_cursors(context: typer.Context, name: LogName, as_json: AsJson = False) -> None:
    """List a log's cursors, and the number of records that each keeps."""

    async def work(location: Location) -> tuple[list[CursorInfo], list[str]]:
        log = await location.log(name)
        listed = await log.cursors()
        return await cursors_of(log, listed.cursors), listed.foreign

    found, foreign = on_location(context, work)
    columns: tuple[Column[CursorInfo], ...] = (
        Column("cursor", lambda one: one.cursor),
        Column("position", lambda one: f"{one.position:,}", right=True),
        Column("holds", lambda one: count_text(one.records, "record"), right=True),
        Column("saved", lambda one: time_text(one.saved_us), whole=True),
        Column("by", lambda one: one.writer),
    )
    print_listing(
        found,
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet="No cursors, so nothing is ever collected. Create one: "
        f"tidelog log cursor create {name} CURSOR",
    )
    for key in foreign:
        say(f"{key} is in the folder of cursors, but is not a cursor.")


@app.command("create")
def create(
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

    async def work(location: Location) -> CursorInfo:
        log = await location.log(name)
        try:
            made = await log.create_cursor(cursor, await _position(log, at))
        except CursorMoved as error:
            raise NameTaken(
                f"the log {name!r} has a cursor {cursor!r} already: move it, or choose another name"
            ) from error
        return await _info(log, cursor, made.cursor)

    found = on_location(context, work)
    _tell(found, asdict(found), f"Created the cursor {cursor!r} at", as_json=as_json)


@app.command("move")
def move(
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

    async def work(location: Location) -> tuple[int, CursorInfo]:
        log = await location.log(name)
        stands = await log.load_cursor(cursor)
        position = await _position(log, at)
        if position < stands.position and not back:
            raise UsageError(
                f"the cursor {cursor!r} is at {stands.position}, and {position} is before it: "
                "pass --back to move it back"
            )
        moved = await log.move_cursor(stands, position, allow_back=back)
        return stands.position, await _info(log, cursor, moved.cursor)

    stood, found = on_location(context, work)
    fields = {**asdict(found), "from": stood}
    _tell(found, fields, f"Moved the cursor {cursor!r} to", as_json=as_json)


@app.command("drop")
def drop(
    context: typer.Context, name: LogName, cursor: CursorName, *, as_json: AsJson = False
) -> None:
    """Drop a cursor: the log no longer keeps records for it."""
    _check_cursor(cursor)

    async def work(location: Location) -> list[str]:
        log = await location.log(name)
        left = set((await log.cursors()).cursors)
        if cursor not in left:
            raise NoSuchCursor(f"the log {name!r} has no cursor {cursor!r}")
        await log.drop_cursor(cursor)
        return sorted(left - {cursor})

    left = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "dropped": cursor, "left": left})
        return
    rest = f"left: {', '.join(left)}" if left else "no cursor is left, so nothing is collected"
    say(f"Dropped the cursor {cursor!r}; {rest}.")


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


def _tell(found: CursorInfo, fields: Mapping[str, object], what: str, *, as_json: bool) -> None:
    if choose_format(None, as_json=as_json) == "json":
        print_json(fields)
    else:
        say(f"{what} {found.position:,}; it holds {count_text(found.records, 'record')}.")


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
