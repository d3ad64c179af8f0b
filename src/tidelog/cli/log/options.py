"""Options and arguments that several verbs of ``tidelog log`` share, and checks of their values."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tidelog.cli.command import on_location, wait_us
from tidelog.cli.output import count_text, show
from tidelog.core.arguments import quoted
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo
    from tidelog.wal.gc.deletion import Pace
    from tidelog.wal.log import Log

T = TypeVar("T")

GRACE: Final = "60s"

Start = Annotated[
    int,
    typer.Option(
        "--from", metavar="POSITION", help="The first position; 0 is the oldest in the log."
    ),
]
To = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="POSITION", help="Stop before this position. The default is the end."
    ),
]
Stream = Annotated[
    str | None, typer.Option("--stream", metavar="STREAM", help="Only this stream of the log.")
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only the records with this key.")
]
Control = Annotated[
    bool, typer.Option("--control", help="Also the records that open and close streams.")
]
Grace = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="DURATION",
        help="How long to wait for running reads before the first deletion.",
    ),
]
SourceLog = Annotated[str, typer.Argument(metavar="SOURCE", help="An existing log.")]
NewLog = Annotated[str, typer.Argument(metavar="NAME", help="The log to create.")]


def on_log(context: typer.Context, name: str, work: Callable[[Log], Awaitable[T]]) -> T:
    """Open a log, and return the result of ``work`` on it."""

    async def whole(location: Location) -> T:
        return await work(await location.log(name))

    return on_location(context, whole)


def show_made(found: LogInfo, what: str, *, as_json: bool) -> None:
    """Report a new log, as JSON or as a sentence; ``what`` says how it was made."""
    show(
        found.to_dict(), f"The log {found.name!r} is {what}: {range_text(found)}.", as_json=as_json
    )


def range_text(found: LogInfo) -> str:
    """Return the number of records of a log and their positions."""
    if not found.records:
        return f"no records; the next has position {found.next:,}"
    held = count_text(found.records, "record")
    return f"{held}, positions {found.oldest:,} to {found.next - 1:,}"


def check_start(start: int) -> None:
    """Raise unless ``--from`` is a position, or 0, which means the oldest.

    Raises:
        UsageError: it is negative.
    """
    if start < 0:
        raise UsageError(f"--from {quoted(start)} is not a position: positions begin at 1")


def check_range(start: int, limit: int | None) -> None:
    """Raise unless ``--from`` and ``--to`` are positions with at least one position between them.

    Raises:
        UsageError: a value is not a position, or the range is empty.
    """
    check_start(start)
    if limit is not None and limit < 0:
        raise UsageError(f"--to {quoted(limit)} is not a position: positions begin at 1")
    if limit is not None and limit <= (first := max(start, 1)):
        raise UsageError(f"--to {limit} selects no position: the range begins at {quoted(first)}")


def check_log(name: str) -> None:
    """Raise unless the name is valid for a log.

    Raises:
        UsageError: it is not.
    """
    from tidelog.core.ids import check_name

    check_name(name, of="name of a log")


def check_protocol(protocol: str | None) -> None:
    """Raise unless the protocol exists; None means the default.

    Raises:
        UsageError: no such protocol exists.
    """
    from tidelog.wal.opening import PROTOCOLS

    if protocol is not None and protocol not in PROTOCOLS:
        known = " or ".join(PROTOCOLS)
        raise UsageError(f"--protocol must be {known}, not {quoted(protocol)}")


def check_place(url: str) -> None:
    """Raise unless the URL names a store that outlives the command.

    Raises:
        UsageError: the URL is invalid, or ``memory://``.
    """
    from tidelog.core.clock import SystemClock
    from tidelog.store.urls import open_store

    if url.lower().startswith("memory:"):
        raise UsageError("memory:// ends with the command: use a path, file:// or s3://")
    open_store(url, clock=SystemClock())


def grace_us_of(text: str) -> int:
    """Return ``--grace``, the wait before the first deletion, in microseconds.

    Raises:
        UsageError: it is not a duration, or longer than a week.
    """
    return wait_us(text, "--grace", most="7d")


def pace_of(per_second: float | None) -> Pace:
    """Return the pace of deletions that ``--deletes-per-second`` sets.

    Raises:
        UsageError: it is not a rate.
    """
    from tidelog.wal.gc.deletion import Pace

    try:
        return Pace(per_second=per_second)
    except UsageError as error:
        raise UsageError(
            f"--deletes-per-second {per_second:g} is not a rate: {error.sentence}"
        ) from error


def key_of(key: str | None) -> bytes | None:
    """Return the bytes of a key from the command line, which need not be UTF-8.

    Raises:
        UsageError: no record can have this key.
    """
    from tidelog.wal.format.fragment_sets import check_key

    if key is None:
        return None
    found = os.fsencode(key)
    check_key(found)
    return found


def stream_id(stream: str | None) -> bytes | None:
    """Return the bytes of a stream's id from the command line, which need not be UTF-8."""
    return None if stream is None else os.fsencode(stream)
