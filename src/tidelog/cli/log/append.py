"""``tidelog log append``: append lines or files to a log."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.feed import Feed, FeedResult, as_they_are
from tidelog.cli.log.options import key_of, stream_id
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.errors import Fenced, TidelogError, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location


def append(
    context: typer.Context,
    name: LogName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files of lines. The default is standard input."),
    ] = None,
    *,
    whole: Annotated[
        bool, typer.Option("--whole", help="Append each file as one record, not its lines.")
    ] = False,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream", metavar="STREAM", help="Append to this stream, which must be open."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="The key of all records; 'scan --key' selects it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Append lines, each a record, and show their positions once all are durable.

    A line ends at a newline. The newline, and a CR right before it, are not part of the record;
    --whole keeps every byte.

    The command sends lines as it reads them. Lines acknowledged before an error stay appended.
    """
    if whole and not files:
        raise UsageError("--whole needs files: name them")
    wanted = key_of(key)
    for file in files or ():
        check_file(file)
    if not files and sys.stdin is None:
        raise UsageError("standard input is closed, so there is nothing to read: name files")

    async def work(location: Location) -> FeedResult:
        async with await location.log(name) as log:
            sent = partial(log.append, stream=stream_id(stream), key=wanted)
            feed = Feed(sent, as_they_are)
            try:
                return await (feed.whole if whole else feed.lines)(files or [])
            except TidelogError as error:
                say(done_before_it_failed(feed.done))
                if isinstance(error, Fenced):
                    raise Fenced(
                        f"another process took over the log {name!r}: to continue, append only "
                        "the records that the log lacks; a full repeat would store records twice",
                        outcome=error.outcome,
                        **error.facts,
                    ) from error
                raise
            finally:
                say_taken_from(log, name)

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **asdict(found)})
    elif found.records:
        told = count_text(found.records, "record")
        say(f"{told} appended, positions {found.first} to {found.last}")
    else:
        say("The input is empty: nothing was appended.")


def say_taken_from(log: object, name: str) -> None:
    """Name the writer that this append fenced, if that writer did not close the log."""
    from tidelog.wal.slot_log import SlotLog

    if isinstance(log, SlotLog) and log.taken_from:
        say(
            f"The log {name!r} was open for the writer {log.taken_from}: "
            "this command fenced that writer"
        )


def done_before_it_failed(done: FeedResult, what: str = "positions") -> str:
    """Return a message with the acknowledged records, so that the user does not repeat them."""
    told = f"{count_text(done.records, 'record')} appended before the failure"
    if not done.records:
        return told
    where = f"{what} {done.first} to {done.last}"
    return f"{told}, {where}: to continue, append only the records after them"


def check_file(path: Path) -> None:
    """Raise unless the path is readable as a file; pipes and devices are.

    Raises:
        UsageError: the path does not exist, or is a directory.
    """
    try:
        is_there, is_directory = path.exists(), path.is_dir()
    except OSError:
        is_there = is_directory = False  # The file system permits no such name.
    if not is_there:
        raise UsageError(f"no such file: {str(path)[:300]!r}")
    if is_directory:
        raise UsageError(f"{str(path)[:300]!r} is a directory: name the files in it")
