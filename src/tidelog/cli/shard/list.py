"""``tidelog shard list``: the shards that users created, with their bounds and sizes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import Column, bytes_text, print_listing, say
from tidelog.cli.shard.opened import time_text
from tidelog.errors import LocationError, TidelogError

if TYPE_CHECKING:
    from tidelog.location import Location

AT_ONCE = 8


class ShardsUnreadable(TidelogError):
    """Some listed shards are damaged."""

    kind = "corruption"


def list_shards(context: typer.Context, as_json: AsJson = False) -> None:
    """List the shards and their contents. A damaged shard does not hide the others.

    Exit status: 1 if a shard cannot be read.
    """
    found = on_location(context, _all)
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("name", lambda one: one["name"]),
        Column("updates", lambda one: _number(one, "updates"), right=True),
        Column("bytes", lambda one: bytes_text(one["bytes"]) if "bytes" in one else "", right=True),
        Column("batches", lambda one: _number(one, "batches"), right=True),
        Column("since", lambda one: time_text(one["since"]) if "since" in one else "", right=True),
        Column("upper", _upper, right=True),
    )
    print_listing(
        found,
        columns,
        fields=dict,
        as_json=as_json,
        none_yet="No shards yet. Create one: tidelog shard create NAME --schema COLUMNS",
    )
    damaged = [one for one in found if "error" in one]
    for one in damaged:
        say(f"tidelog: the shard {one['name']!r} cannot be read: {one['error']}")
    if damaged:
        raise ShardsUnreadable(f"{len(damaged)} of {len(found)} shards cannot be read")


def _upper(one: dict[str, Any]) -> str:
    if "upper" not in one:
        return ""
    return "dropped" if one["dropped"] else time_text(one["upper"])


def _number(one: dict[str, Any], name: str) -> str:
    return f"{one[name]:,}" if name in one else ""


async def _all(location: Location) -> list[dict[str, Any]]:
    from tidelog.core.clock import run_all

    names = await location.shards.list()
    return await run_all([partial(_one, location, name) for name in names], at_once=AT_ONCE)


async def _one(location: Location, name: str) -> dict[str, Any]:
    try:
        state = await location.shard(name).refresh()
    except LocationError:
        raise
    except TidelogError as error:
        return {"name": name, "error": str(error), "error_kind": error.kind}
    return {
        "name": name,
        "since": state.since,
        "upper": state.upper,
        "updates": state.totals.rows,
        "bytes": state.totals.size_bytes,
        "batches": len(state.batches),
        "dropped": state.is_buried,
    }
