"""``tidelog log fork``, ``copy``, ``rebuild`` and ``destroy``: whole logs of a location."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log import check_start
from tidelog.cli.log_collect import GRACE_SECONDS, Grace, grace_us_of, with_patience
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location

SourceLog = Annotated[str, typer.Argument(metavar="SOURCE", help="The log that there is.")]
NewLog = Annotated[str, typer.Argument(metavar="NAME", help="The log to make.")]
From = Annotated[
    int, typer.Option("--from", metavar="POSITION", help="The first record; by default the oldest.")
]


def fork(
    context: typer.Context,
    source: SourceLog,
    name: NewLog,
    *,
    start: From = 0,
    as_json: AsJson = False,
) -> None:
    """Make a log that begins with what SOURCE has, and shares its objects: nothing is copied.

    From then on the two go their own ways. SOURCE cannot be destroyed before its forks.
    """
    from tidelog.wal.format.pin import pin_path

    check_start(start)
    check_log(name)
    pin_path(name)  # What the two share is held by a pin of the fork's name.

    async def work(location: Location) -> dict[str, Any]:
        return await (await location.fork_log(source, name, start=start)).describe()

    _tell_made(on_location(context, work), f"a fork of {source!r}", as_json=as_json)


def copy(
    context: typer.Context,
    source: SourceLog,
    name: NewLog,
    *,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="slot|manifest", help="That of the copy; by default the same as the source's."
        ),
    ] = None,
    start: From = 0,
    as_json: AsJson = False,
) -> None:
    """Copy a log to another, of the same protocol or the other; positions and times stay.

    Hold SOURCE by a cursor or a pin if it may be collected meanwhile.
    """
    check_start(start)
    check_log(name)
    check_protocol(protocol)

    async def work(location: Location) -> dict[str, Any]:
        made = await location.copy_log(source, name, protocol=protocol, start=start)
        return await made.describe()

    _tell_made(on_location(context, work), f"a copy of {source!r}", as_json=as_json)


def rebuild(context: typer.Context, name: LogName, *, as_json: AsJson = False) -> None:
    """Make the lost manifest of a log again, from what its objects say of themselves.

    Only where it is missing: one that is damaged has to be moved away first. Cursors and pins stay.
    """
    check_log(name)

    async def work(location: Location) -> dict[str, Any]:
        return await (await location.rebuild_log(name)).describe()

    _tell_made(on_location(context, work), "rebuilt", as_json=as_json)
    say(f"Check it with: tidelog log scrub {name}")


def destroy(
    context: typer.Context,
    name: LogName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    grace: Grace = GRACE_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Destroy a log, with all records, cursors and pins; to do it again finishes what was begun.

    The name of a slot log stays taken: writers who slept through it must not take it for another.
    """
    grace_us = grace_us_of(grace)
    check_log(name)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is there to ask: write --yes to destroy the log")
        if not typer.confirm(on_location(context, lambda at: _question(at, name)), err=True):
            say("Nothing was destroyed.")
            raise typer.Exit(1)

    async def work(location: Location) -> dict[str, Any]:
        done = await with_patience(location.destroy_log(name, grace_us=grace_us), grace)
        return done.to_dict()

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **found})
        return
    kept = found["kept"]
    left = f"; {count_text(kept, 'object')} left, for sleepers and pins" if kept else ""
    say(f"The log {name!r} is destroyed: {count_text(found['deleted'], 'object')} deleted{left}.")
    for key in found["foreign"]:
        say(f"{key} is none of a log's, and was left.")


def check_log(name: str) -> None:
    """Refuse what can be no log's name.

    Raises:
        UsageError: so it is.
    """
    from tidelog.ids import check_name

    check_name(name, of="name of a log")


def check_protocol(protocol: str | None) -> None:
    """Refuse what is no protocol.

    Raises:
        UsageError: so it is.
    """
    from tidelog.wal.logs import PROTOCOLS

    if protocol is not None and protocol not in PROTOCOLS:
        raise UsageError(f"there is no protocol {protocol!r}: it is one of {', '.join(PROTOCOLS)}")


def _tell_made(found: dict[str, Any], what: str, *, as_json: bool) -> None:
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        say(f"The log {found['name']!r} is {what}: {range_text(found)}.")


def range_text(found: dict[str, Any]) -> str:
    """Say what a log that was described has."""
    if not found["records"]:
        return f"no records; the next has position {found['next']:,}"
    held = count_text(found["records"], "record")
    return f"{held}, positions {found['oldest']:,} to {found['next'] - 1:,}"


async def _question(location: Location, name: str) -> str:
    from tidelog.errors import NoSuchLog

    try:
        log = await location.log(name)
    except NoSuchLog:
        # Of one that was destroyed in part there is something left.
        if await anext(aiter(location.shelf.within(name).list("")), None) is None:
            raise
        return f"There is no log {name!r} any more. Delete what is left of it?"
    return f"Destroy the log {name!r} for ever: {range_text(await log.describe())}?"
