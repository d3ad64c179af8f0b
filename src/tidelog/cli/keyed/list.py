"""``tidelog keyed list``: the keyed logs of a location, with their bounds and sizes."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.keyed.opened import closing
from tidelog.cli.output import Column, bytes_text, print_listing
from tidelog.core.clock import run_all
from tidelog.errors import NoSuchLog

if TYPE_CHECKING:
    from tidelog.keyed.values import KeyedInfo
    from tidelog.location import Location


def list_keyed(context: typer.Context, as_json: AsJson = False) -> None:
    """List the keyed logs and their contents."""
    columns: tuple[Column[KeyedInfo], ...] = (
        Column("name", lambda one: one.name),
        Column("oldest", lambda one: f"{one.oldest:,}", right=True),
        Column("next", lambda one: f"{one.next_sequence:,}", right=True),
        Column("segments", lambda one: f"{one.segments:,}", right=True),
        Column("runs", lambda one: f"{one.runs:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("loose", lambda one: f"{one.loose_fragments:,}", right=True),
    )
    print_listing(
        on_location(context, _described),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet="No keyed logs yet. Create one: tidelog keyed create NAME",
    )


async def _described(location: Location) -> list[KeyedInfo]:
    from tidelog.core.lookahead import AT_ONCE_MAX

    work = [partial(_one, location, name) for name in await location.keyed.list()]
    return [one for one in await run_all(work, at_once=AT_ONCE_MAX) if one is not None]


async def _one(location: Location, name: str) -> KeyedInfo | None:
    """Return a log's description; None if another process dropped it concurrently."""
    try:
        async with closing(await location.keyed.reader(name)) as log:
            return await log.describe()
    except NoSuchLog:
        return None
