"""``tidelog inspect``: the batches, holds and objects of collections and shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.maintenance import Follow, ShardNames, Turn, Wait, again_and_again
from tidelog.cli.output import (
    bytes_text,
    choose_format,
    count_text,
    dollars_text,
    print_fields,
    print_json,
)

if TYPE_CHECKING:
    from tidelog.collection.maintenance import ShardFacts
    from tidelog.location import Location


def inspect(
    context: typer.Context,
    names: ShardNames = None,
    *,
    follow: Follow = False,
    interval: Wait = 60.0,
    as_json: AsJson = False,
) -> None:
    """Show the batches, holds and objects of collections and shards.

    Without names, the command shows all of them. It counts each object once: live (the state names
    it), gone (a merge replaced it), young (no state names it yet), dead (no state will ever name
    it: tidelog collect --sweep) or other.
    """
    is_json = choose_format(None, as_json=as_json) == "json"
    shown = 0

    async def once(location: Location, turn: Turn) -> None:
        nonlocal shown
        maintenance = location.maintenance
        groups = await maintenance.groups(names or (), dropped=True)
        async for one in turn.each(groups, maintenance.inspect):
            if is_json:
                print_json(_object(one))
                continue
            if shown:
                typer.echo()
            print_fields(_fields(one))
            shown += 1

    on_location(context, lambda location: again_and_again(location, once, follow, interval))


def _object(one: ShardFacts) -> dict[str, Any]:
    return {
        "name": one.name,
        "shard": one.shard,
        "role": one.role,
        "since": one.since,
        "upper": one.upper,
        "seqno": one.seqno,
        "updates": one.updates,
        "batches": [
            {"lower": b.lower, "upper": b.upper, "since": b.since, "updates": b.rows}
            | {"bytes": b.size_bytes, "parts": len(b.parts)}
            for b in one.batches
        ],
        "holds": {name: hold.since for name, hold in sorted(one.holds.items())},
        "objects": {kind.value: count for kind, count in one.usage.objects.items()},
        "bytes": {kind.value: size for kind, size in one.usage.size_bytes.items()},
        "inline_bytes": one.usage.inline_bytes,
        "stored_bytes": one.usage.stored_bytes,
        "storage_dollars_a_month": one.usage.dollars_a_month,
    }


def _fields(one: ShardFacts) -> list[tuple[str, str | list[str]]]:
    from tidelog.collection.formats.times import format_time
    from tidelog.collection.maintenance import SHARD_ROLE

    def when(time: int | None) -> str:
        if time is None:
            return "the end"
        # Times of a user's own shards are plain numbers: only the user knows their unit.
        return str(time) if one.role == SHARD_ROLE else format_time(time)

    dollars = dollars_text(one.usage.dollars_a_month)
    objects = [
        f"{kind.value}: {count:,}, {bytes_text(one.usage.size_bytes[kind])}"
        for kind, count in one.usage.objects.items()
        if count
    ]
    batches = [
        f"{when(b.lower)} to {when(b.upper)}: {count_text(b.rows, 'update')} in "
        f"{count_text(len(b.parts), 'part')}, {bytes_text(b.size_bytes)}"
        for b in one.batches
    ]
    return [
        ("name", one.name if one.name.startswith("(") else f"{one.name}: {one.role}"),
        ("shard", one.shard),
        ("since, upper", f"{when(one.since)}, {when(one.upper)}"),
        ("updates", f"{one.updates:,}"),
        ("batches", batches or "none"),
        (
            "holds",
            [f"{name}: {when(hold.since)}" for name, hold in sorted(one.holds.items())] or "none",
        ),
        ("objects", objects or "none"),
        ("storage", f"{bytes_text(one.usage.stored_bytes)}: {dollars} a month"),
        ("in the state", bytes_text(one.usage.inline_bytes)),
    ]
