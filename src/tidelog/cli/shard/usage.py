"""``tidelog shard usage``: counts and sizes of a shard's objects, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import (
    bytes_text,
    choose_format,
    count_text,
    dollars_text,
    print_fields,
    print_json,
)
from tidelog.cli.shard.opened import ShardName

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.persist.maintenance.usage import ShardUsage


def usage(context: typer.Context, name: ShardName, as_json: AsJson = False) -> None:
    """List the objects of a shard by kind. Each object counts once.

    live: the state names it. gone: a merge replaced it, and collect will delete it. young: no state
    names it yet. dead: no state will ever name it. other: it is not of the shard.
    """

    async def work(location: Location) -> ShardUsage:
        from tidelog.persist.maintenance.sweeper import usage_of_shard

        return await usage_of_shard(await location.shards.find(name))

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(
            {
                "shard": name,
                "objects": {kind.value: count for kind, count in found.objects.items()},
                "bytes": {kind.value: size for kind, size in found.size_bytes.items()},
                "inline_bytes": found.inline_bytes,
                "stored_bytes": found.stored_bytes,
                "storage_dollars_a_month": found.dollars_a_month,
                "dead": list(found.dead),
            }
        )
        return
    lines = [
        (kind.value, f"{count_text(count, 'object')}, {bytes_text(found.size_bytes[kind])}")
        for kind, count in found.objects.items()
    ]
    total = (
        f"{count_text(sum(found.objects.values()), 'object')}, {bytes_text(found.stored_bytes)}: "
        f"{dollars_text(found.dollars_a_month)} a month"
    )
    print_fields([*lines, ("total", total), ("in the state", bytes_text(found.inline_bytes))])
