"""``tidelog log adopt``: import a log of Chroma's wal3; `export` does the reverse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, location_url
from tidelog.cli.log.messages import show_made
from tidelog.cli.log.options import check_log, check_place
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.wal.describe import LogInfo


def adopt(
    context: typer.Context,
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="The place of a log that wal3 wrote: a path, file://, s3://, gs://, az://.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The name of the copy. The default is the last part of PLACE."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Copy a log that Chroma's wal3 wrote, and its cursors, into the location as the log NAME.

    The log at PLACE does not change.
    """
    called = _name_of(place) if name is None else name
    check_log(called)
    check_place(place)
    found = asyncio.run(_adopt(location_url(context), place, called))
    show_made(found, "adopted", as_json=as_json)


async def _adopt(url: str, place: str, name: str) -> LogInfo:
    from tidelog.core.clock import SystemClock
    from tidelog.location import open_location
    from tidelog.store.urls import open_store
    from tidelog.wal.read.head import load_head, refuse_slots

    # Read the source first, so that a log that cannot be adopted creates no location.
    refuse_slots((await load_head(open_store(place, clock=SystemClock()))).manifest)
    location = await open_location(url, create=True)
    return await (await location.logs.adopt(place, name)).describe()


def _name_of(place: str) -> str:
    from tidelog.store.urls import without_secrets

    name = without_secrets(place).rstrip("/").rpartition("/")[2]
    if not name or name.endswith(":"):
        raise UsageError(f"{place} does not end in a name: write NAME after PLACE")
    return name
