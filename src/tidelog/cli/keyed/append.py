"""``tidelog keyed append``: append lines to keys."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.lines import Reads, json_records, raw_records
from tidelog.cli.keyed.opened import KeyedName, on_writer
from tidelog.cli.keyed.options import KeyForm, check_form, key_bytes
from tidelog.cli.log.append import check_file, done_before_it_failed, say_taken_from
from tidelog.cli.log.feed import Feed, FeedResult
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.errors import Fenced, TidelogError, UsageError

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedWrites


def append(
    context: typer.Context,
    name: KeyedName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files of lines. The default is standard input."),
    ] = None,
    *,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The key of all lines; each line is a value."),
    ] = None,
    key_form: KeyForm = "text",
    format: Annotated[
        str | None,
        typer.Option(
            metavar="json|raw",
            help='json: lines such as {"key": "a", "value": "b"}, the output of scan. raw: each '
            "line is a value of --key. The default is raw with --key, else json.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Append lines, and show their sequences once all are durable.

    The command sends lines as it reads them. Lines acknowledged before an error stay appended.
    """
    check_form(key_form)
    read = _reading(key, key_form, format)
    for file in files or ():
        check_file(file)
    if not files and sys.stdin is None:
        raise UsageError("standard input is closed, so there is nothing to read: name files")

    async def work(log: KeyedWrites) -> FeedResult:
        feed = Feed(log.append, read)
        try:
            return await feed.lines(files or [])
        except TidelogError as error:
            say(done_before_it_failed(feed.done, "sequences"))
            if isinstance(error, Fenced):
                raise Fenced(
                    f"another process took over the keyed log {name!r}: to continue, append only "
                    "the records that the log lacks; a full repeat would store records twice",
                    outcome=error.outcome,
                ) from error
            raise
        finally:
            from tidelog.keyed.log import KeyedLog

            if isinstance(log, KeyedLog):
                say_taken_from(log.wal, name)

    found = on_writer(context, name, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **asdict(found)})
    elif found.records:
        told = count_text(found.records, "record")
        say(f"{told} appended, sequences {found.first} to {found.last}")
    else:
        say("The input is empty: nothing was appended.")


def _reading(key: str | None, form: str, format: str | None) -> Reads:
    """Return the function that turns lines into records.

    Raises:
        UsageError: the format is unknown, or the options contradict each other.
    """
    if format not in (None, "json", "raw"):
        raise UsageError(f"--format must be json or raw, not {format[:200]!r}")
    if format == "raw" and key is None:
        raise UsageError("--format raw needs a key for all lines: pass --key KEY")
    for_all = None if key is None else key_bytes(key, form, "--key")
    if for_all is not None and format != "json":
        return raw_records(for_all)
    return json_records(for_all, form)
