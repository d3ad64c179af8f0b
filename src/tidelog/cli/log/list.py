"""``tidelog log list``: the logs of a location, with their bounds and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import (
    Column,
    bytes_text,
    choose_format,
    count_text,
    print_json,
    print_table,
    say,
)
from tidelog.core.clock import run_all
from tidelog.errors import CopyUnfinished, LocationError, ManifestLost, NoSuchLog, TidelogError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A log that cannot be described, and the error."""

    name: str
    error: TidelogError

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "error": str(self.error), "error_kind": self.error.kind}


class LogsUnreadable(TidelogError):
    """Some listed logs are damaged."""

    kind = "corruption"


def list_logs(context: typer.Context, as_json: AsJson = False) -> None:
    """List the logs and their contents; a damaged log does not hide the others.

    An interrupted copy is listed with the commands that finish or remove it.

    Exit status: 1 if a log cannot be read.
    """
    found = on_location(context, logs_of)
    is_json = choose_format(None, as_json=as_json) == "json"
    unreadable = [one for one in found if isinstance(one, Unreadable)]
    # An interrupted copy is not yet a log, and it damages no other log.
    damaged = [one for one in unreadable if not isinstance(one.error, CopyUnfinished)]
    columns: tuple[Column[LogInfo], ...] = (
        Column("name", lambda one: one.name),
        Column("protocol", lambda one: one.protocol),
        Column("records", lambda one: f"{one.records:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("oldest", lambda one: str(one.oldest), right=True),
        Column("next", lambda one: str(one.next), right=True),
        Column("sealed", lambda one: "yes" if one.seal else ""),
    )
    if is_json:
        print_json(*(one.to_dict() for one in found))
    elif whole := [one for one in found if not isinstance(one, Unreadable)]:
        print_table(whole, columns)
    elif not unreadable:
        say("No logs yet. Create one: tidelog log create NAME")
    for one in unreadable:
        say(f"{one.name}: {one.error}")
    if damaged:
        told = count_text(len(damaged), "log")
        raise LogsUnreadable(f"{told} cannot be read: see above")


async def logs_of(location: Location) -> list[LogInfo | Unreadable]:
    """Return descriptions of all logs of a location, in the order of their names.

    Raises:
        LocationError: the store failed.
    """
    from tidelog.core.lookahead import AT_ONCE_MAX

    work = [partial(_described, location, name) for name in await location.logs.found()]
    return [one for one in await run_all(work, at_once=AT_ONCE_MAX) if one is not None]


async def _described(location: Location, name: str) -> LogInfo | Unreadable | None:
    """Describe a log; None if it was dropped."""
    try:
        return await (await location.log(name)).describe()
    except LocationError:
        raise
    except TidelogError as error:
        if isinstance(error, NoSuchLog) and not isinstance(error, ManifestLost):
            return None
        return Unreadable(name=name, error=error)
