"""``tidelog keyed create``: create a keyed log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson, location_url
from tidelog.cli.keyed.opened import KeyedName, check_keyed, closing
from tidelog.cli.keyed.settings import (
    RetainAge,
    RetainBytes,
    RetainSegments,
    SealAge,
    SealBytes,
    retention_of,
    sealing_of,
)
from tidelog.cli.output import choose_format, print_json, say

if TYPE_CHECKING:
    from tidelog.keyed.values import KeyedInfo, Retention, Sealing


def create(
    context: typer.Context,
    name: KeyedName,
    *,
    seal_bytes: SealBytes = None,
    seal_age: SealAge = None,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_segments: RetainSegments = None,
    as_json: AsJson = False,
) -> None:
    """Create a keyed log, and the location if it does not exist."""
    from tidelog.keyed.values import Retention, Sealing

    check_keyed(name)
    sealing = sealing_of(Sealing(), seal_bytes, seal_age)
    retention = retention_of(Retention(), retain_age, retain_bytes, retain_segments)
    found = asyncio.run(_create(location_url(context), name, sealing, retention))
    if choose_format(None, as_json=as_json) == "json":
        print_json(asdict(found))
    else:
        say(f"Created the keyed log {name!r}. Append to it: tidelog keyed append {name} < JSON")


async def _create(url: str, name: str, sealing: Sealing, retention: Retention) -> KeyedInfo:
    from tidelog.location import open_location

    location = await open_location(url, create=True)
    async with closing(
        await location.keyed.create(name, sealing=sealing, retention=retention)
    ) as log:
        return await log.describe()
