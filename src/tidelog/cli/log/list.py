"""``tidelog log list``: the logs of a location, and what is in them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import Column, bytes_text, print_listing
from tidelog.errors import NoSuchLog

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo


def list_logs(context: typer.Context, as_json: AsJson = False) -> None:
    """List the logs, and what is in them."""
    columns: tuple[Column[LogInfo], ...] = (
        Column("name", lambda one: one.name),
        Column("protocol", lambda one: one.protocol),
        Column("records", lambda one: f"{one.records:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("oldest", lambda one: str(one.oldest), right=True),
        Column("next", lambda one: str(one.next), right=True),
        Column("sealed", lambda one: "yes" if one.seal else ""),
    )
    print_listing(
        on_location(context, _describe_all),
        columns,
        fields=lambda one: one.to_dict(),
        as_json=as_json,
        none_yet="There are no logs yet: 'tidelog log create NAME' makes one.",
    )


async def _describe_all(location: Location) -> list[LogInfo]:
    found: list[LogInfo] = []
    for name in await location.logs():
        with suppress(NoSuchLog):  # It was destroyed.
            found.append(await (await location.log(name)).describe())
    return found
