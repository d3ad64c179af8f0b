"""``tidelog keyed scrub``: read and check all stored data of a keyed log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.keyed.opened import KeyedName, check_keyed, closing
from tidelog.cli.log.scrub import LogBroken
from tidelog.cli.output import bytes_text, choose_format, count_text, print_json, say, write_text

if TYPE_CHECKING:
    from tidelog.keyed.maintenance.scrub import KeyedScrubReport
    from tidelog.location import Location


def scrub(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Read all stored data, and check it.

    The command reads checkpoints as well, and reports every problem. Exit status: 1 if it finds
    one.
    """
    check_keyed(name)

    async def work(location: Location) -> KeyedScrubReport:
        async with closing(await location.keyed.open(name)) as log:
            return await log.scrub()

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **scrubbed_object(found)})
    else:
        tell_scrubbed(found)
    if not found.is_clean:
        raise LogBroken(f"the keyed log {name!r} is damaged: restore the objects named above")


def scrubbed_object(found: KeyedScrubReport) -> dict[str, Any]:
    """Return the JSON object of a scrub."""
    return {**asdict(found), "is_clean": found.is_clean}


def tell_scrubbed(found: KeyedScrubReport, of: str = "") -> None:
    """Write the result of a scrub for people; each line begins with ``of``."""
    for problem in found.problems:
        write_text(f"{of}{problem}\n")
    read = count_text(found.records, "record"), count_text(found.runs, "run")
    say(
        f"{of}{read[0]} in {read[1]} read, {bytes_text(found.bytes)}, and "
        f"{count_text(found.wal_records, 'record')} in its log; "
        f"{count_text(len(found.problems), 'problem')}"
    )
