"""Messages about a log that several verbs of ``tidelog log`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.cli.output import choose_format, count_text, print_json, say

if TYPE_CHECKING:
    from tidelog.wal.describe import LogInfo


def show_made(found: LogInfo, what: str, *, as_json: bool) -> None:
    """Report a new log, as JSON or as a sentence; ``what`` says how it was made."""
    if choose_format(None, as_json=as_json) == "json":
        print_json(found.to_dict())
    else:
        say(f"The log {found.name!r} is {what}: {range_text(found)}.")


def range_text(found: LogInfo) -> str:
    """Return the number of records of a log and their positions."""
    if not found.records:
        return f"no records; the next has position {found.next:,}"
    held = count_text(found.records, "record")
    return f"{held}, positions {found.oldest:,} to {found.next - 1:,}"
