"""``tidelog shard state`` and ``diffs``: a shard's state at a seqno, and the changes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.output import choose_format, print_json, time_text, write_text
from tidelog.cli.shard.opened import ShardName

if TYPE_CHECKING:
    from tidelog.location import Location


def state(
    context: typer.Context,
    name: ShardName,
    *,
    seqno: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="The seqno of the state. The default is the newest."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole state of a shard at a seqno, as one JSON object."""

    async def work(location: Location) -> dict[str, Any]:
        from tidelog.cli.shard.plain import plain
        from tidelog.machine.past import state_at

        shard = await location.shards.find(name)
        at = int(shard.machine.seqno) if seqno is None else seqno
        found = shard.state if seqno is None else await state_at(shard.machine, seqno)
        return {"shard": name, "seqno": at, **plain(found)}

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def diffs(
    context: typer.Context,
    name: ShardName,
    *,
    start: Annotated[
        int,
        typer.Option(
            "--from", min=1, metavar="N", help="The first seqno. The default is the oldest."
        ),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Show the stored changes of a shard's state, oldest first, one JSON object per change.

    The list begins at the oldest stored rollup: collection deletes earlier changes.
    """

    async def work(location: Location) -> list[dict[str, Any]]:
        from tidelog.cli.shard.plain import changed_fields
        from tidelog.machine.past import kept_records
        from tidelog.persist.states.state import Diff

        shard = await location.shards.find(name)
        return [
            {
                "seqno": one.seqno,
                "at_us": one.record.at_us,
                "rollup": None if one.record.rollup is None else one.record.rollup.seqno,
                "floor": one.record.floor,
                "changes": [changed_fields(diff, Diff()) for diff in one.diffs],
            }
            for one in await kept_records(shard.machine, start)
        ]

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(*found)
        return
    for one in found:
        rolled = "" if one["rollup"] is None else f", rollup of {one['rollup']}"
        write_text(f"{one['seqno']}  {time_text(one['at_us'])}{rolled}\n")
        for change in one["changes"]:
            write_text(f"    {json.dumps(change, ensure_ascii=False)}\n")
