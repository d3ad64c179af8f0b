"""``tidelog log create``: create a log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, location_url
from tidelog.cli.output import choose_format, print_json, say

if TYPE_CHECKING:
    from tidelog.wal.describe import LogInfo


def create(
    context: typer.Context,
    name: LogName,
    *,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="slot|manifest",
            help="slot: one request for an append; a new writer fences the former one. "
            "manifest: the format of Chroma's wal3; writers are not fenced, and their "
            "records interleave. For failover use slot.",
        ),
    ] = "slot",
    as_json: AsJson = False,
) -> None:
    """Create a log, and the location if it does not exist."""
    found = asyncio.run(_create(location_url(context), name, protocol))
    if choose_format(None, as_json=as_json) == "json":
        print_json(found.to_dict())
    else:
        say(f"Created the log {name!r}. Append to it with: tidelog log append {name} < LINES")


async def _create(url: str, name: str, protocol: str) -> LogInfo:
    from tidelog.location import open_location

    location = await open_location(url, create=True)
    return await (await location.logs.create(name, protocol=protocol)).describe()
