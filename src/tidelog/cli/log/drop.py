"""``tidelog log drop``: delete a log with its records, cursors and pins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, ask_first, on_location
from tidelog.cli.log.messages import range_text
from tidelog.cli.log.options import GRACE_SECONDS, Grace, check_log, grace_us_of
from tidelog.cli.log.patience import with_patience
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.errors import NoSuchLog
from tidelog.store.listing import first_entry

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.admin.destroy import DropReport


def drop(
    context: typer.Context,
    name: LogName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    grace: Grace = GRACE_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Drop a log with all records, cursors and pins; a second run finishes an interrupted one.

    The name is never reused, so a stale client cannot mistake a new log for this one.
    """
    grace_us = grace_us_of(grace)
    check_log(name)
    if not yes:
        ask_first(
            lambda: on_location(context, lambda at: _question(at, name)),
            deed="drop the log",
            undone="Nothing was dropped.",
        )

    async def work(location: Location) -> DropReport:
        return await with_patience(location.logs.drop(name, grace_us=grace_us), grace)

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **found.to_dict()})
        return
    left = f", {count_text(found.kept, 'object')} kept" if found.kept else ""
    say(f"Dropped the log {name!r}: {count_text(found.deleted, 'object')} deleted{left}.")
    for key in found.foreign:
        say(f"{key} does not belong to a log, and was not deleted.")


async def _question(location: Location, name: str) -> str:
    try:
        log = await location.log(name)
    except NoSuchLog:
        # An interrupted drop leaves objects of a log that can no longer be opened.
        if await first_entry(location.logs.within(name), "") is None:
            raise
        return f"The log {name!r} is dropped, but some objects are left. Delete them?"
    return f"Drop the log {name!r} ({range_text(await log.describe())}) for good?"
