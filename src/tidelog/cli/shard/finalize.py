"""``tidelog shard finalize``: end a shard for good, and give up its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, ask_first, on_location
from tidelog.cli.output import choose_format, count_text, print_json, say
from tidelog.cli.shard.opened import ShardName, opened

if TYPE_CHECKING:
    from tidelog.location import Location


def finalize(
    context: typer.Context,
    name: ShardName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Finish a shard for good: it can be neither written nor read.

    The next 'tidelog collect' deletes its objects. No other shard can have its name. To end the
    writes but keep the contents: tidelog shard append NAME --upper end < /dev/null.
    """
    if not yes:
        ask_first(
            lambda: f"Give up all that the shard {name!r} holds, for good?",
            deed="give it up",
            undone="Nothing was given up.",
        )

    async def work(location: Location) -> int:
        return await (await opened(location, name)).finalize()

    vanished = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"shard": name, "objects": vanished})
    else:
        say(f"{name!r} is finalized; tidelog collect will delete {count_text(vanished, 'object')}")
