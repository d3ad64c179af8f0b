"""``tidelog shard downgrade``: move a hold to a later time, and give up the times before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, ask_first, on_location
from tidelog.cli.output import choose_format, print_json, say
from tidelog.cli.shard.opened import ShardName, opened, schema_of, time_of, time_text
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location

HISTORY: Final = "history"


def downgrade(
    context: typer.Context,
    name: ShardName,
    time: Annotated[
        str,
        typer.Argument(
            metavar="TIME", help="The new time of the hold. Earlier times may become unreadable."
        ),
    ],
    *,
    hold: Annotated[
        str,
        typer.Option(metavar="HOLD", help="The hold to move; it is created if it does not exist."),
    ] = HISTORY,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a hold of a shard to a later time; since follows the earliest hold.

    Times before since become unreadable for good.
    """
    wanted = time_of(time, "TIME")
    if not yes:
        ask_first(
            lambda: f"Give up the times of {name!r} before {wanted}, for good?",
            deed="give up earlier times",
            undone="Nothing was given up.",
        )

    async def work(location: Location) -> tuple[int | None, dict[str, int | None]]:
        shard = await opened(location, name)
        if shard.state.is_buried:
            raise UsageError(f"the shard {name!r} was finalized: there is nothing left to give up")
        shard.schema = schema_of(shard.state)
        upper = shard.state.upper_frontier
        if not upper.is_empty and wanted > upper.time:
            raise UsageError(
                f"the shard is complete only before {upper.time}: give {upper.time} or an earlier "
                "time",
                asked=wanted,
            )
        await shard.hold(hold)
        await shard.downgrade_since(hold, wanted)
        return shard.state.since, {n: one.since for n, one in shard.state.holds.items()}

    since, holds = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"shard": name, "since": since, "holds": dict(sorted(holds.items()))})
        return
    told = f"The earliest readable time of {name!r} is {time_text(since)}"
    behind = [n for n, at in sorted(holds.items()) if at is not None and at < wanted]
    if since is not None and since < wanted and behind:
        told += f"; earlier holds: {', '.join(behind)}"
    say(told)
