"""``tidelog shard drop``: drop a shard for good, and give up its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, ask_first, on_location
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.cli.shard.opened import ShardName

if TYPE_CHECKING:
    from tidelog.location import Location


def drop(
    context: typer.Context,
    name: ShardName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a shard: it can no longer be written or read, for good.

    The next 'tidelog collect' deletes its objects. The name is never reused. To end the writes but
    keep the contents: tidelog shard append NAME --upper end < /dev/null.
    """
    if not yes:
        ask_first(
            lambda: f"Drop the shard {name!r}, and give up its contents for good?",
            deed="drop the shard",
            undone="Nothing was dropped.",
        )

    async def work(location: Location) -> int:
        return await location.shards.drop(name)

    vanished = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"shard": name, "objects": vanished})
    else:
        say(f"Dropped {name!r}; tidelog collect will delete {count_text(vanished, 'object')}")
