"""Options and arguments that several verbs of ``tidelog log`` share, and checks of their values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.output import FORMATS, choose_format
from tidelog.core.arguments import quoted
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.wal.gc.deletion import Pace

GRACE_SECONDS: Final = 60.0

Start = Annotated[
    int,
    typer.Option(
        "--from", metavar="POSITION", help="The first position. The default is the oldest."
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="table|json|csv|raw",
        help="The output format; raw writes only the contents of records, one per line. The "
        "default is a table on a terminal, else JSON lines.",
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
    float,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="How long to wait for running reads before the first deletion.",
    ),
]
SourceLog = Annotated[str, typer.Argument(metavar="SOURCE", help="An existing log.")]
NewLog = Annotated[str, typer.Argument(metavar="NAME", help="The log to create.")]


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


def choose_record_format(format: str | None, *, as_json: bool) -> str:
    """Return the format of records: ``raw``, or the choice of `choose_format`.

    Raises:
        UsageError: the format is unknown, or contradicts ``--json``.
    """
    if format not in (None, "raw", *FORMATS):
        known = ", ".join((*FORMATS, "raw"))
        raise UsageError(f"--format must be one of {known}, not {format!r}")
    if as_json and format == "raw":
        raise UsageError("--json and --format raw exclude each other: give one")
    return "raw" if format == "raw" else choose_format(format, as_json=as_json)


def time_us_of(text: str, what: str) -> int:
    """Return a time option in microseconds since 1970; ``what`` names the option in errors.

    Raises:
        UsageError: the text is not a time.
    """
    from tidelog.collection.formats.times import parse_time_us
    from tidelog.core.clock import SystemClock
    from tidelog.wal.read.limits import check_time_us

    time_us = parse_time_us(text, what=what, now_us=SystemClock().now_us())
    check_time_us(time_us)
    return time_us


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


def grace_us_of(seconds: float) -> int:
    """Return ``--grace``, the wait before the first deletion, in microseconds.

    Raises:
        UsageError: it is negative, or longer than a week.
    """
    if not 0 <= seconds <= 604_800:
        raise UsageError(f"--grace must be 0 to 604800 seconds (a week), not {seconds:g}")
    return int(seconds * 1e6)


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
    from tidelog.wal.format.key_set import check_key

    if key is None:
        return None
    found = os.fsencode(key)
    check_key(found)
    return found


def stream_id(stream: str | None) -> bytes | None:
    """Return the bytes of a stream's id from the command line, which need not be UTF-8."""
    return None if stream is None else os.fsencode(stream)
