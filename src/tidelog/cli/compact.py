"""``tidelog compact``: merge what collections and shards have come to consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.maintained import Follow, MaintainedNames, Turn, Wait, again_and_again
from tidelog.cli.output import bytes_text, count_text, print_json, say

if TYPE_CHECKING:
    from tidelog.collection.maintenance import CompactedOne
    from tidelog.location import Location


def compact(
    context: typer.Context,
    names: MaintainedNames = None,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Leave one batch a shard, whatever it costs.")
    ] = False,
    follow: Follow = False,
    interval: Wait = 60.0,
    as_json: AsJson = False,
) -> None:
    """Merge what is due, of the collections and shards that are named, or of all that there is.

    Contents stay the same at each time that can be read. What was taken back before 'since' is
    left out. The objects that are merged stay for an hour, for who reads them: see tidelog collect.
    """

    async def once(location: Location, turn: Turn) -> None:
        tending = location.maintenance
        kept = await tending.kept(names or ())
        async for one in turn.each(kept, lambda some: tending.compact(some, full=full)):
            if as_json:
                print_json(_object(one))
            elif one.done.merges or not follow:
                say(_line(one))

    on_location(context, lambda location: again_and_again(location, once, follow, interval))


def _object(one: CompactedOne) -> dict[str, Any]:
    done = one.done
    return {
        "name": one.name,
        "merges": done.merges,
        "overtaken": done.overtaken,
        "updates_read": done.rows_read,
        "updates_written": done.rows_written,
        "bytes_read": done.bytes_read,
        "bytes_written": done.bytes_written,
        "batches": one.batches,
    }


def _line(one: CompactedOne) -> str:
    done, has = one.done, "1 batch" if one.batches == 1 else f"{one.batches:,} batches"
    if not done.merges:
        return f"{one.name}: nothing to merge, {has}"
    return (
        f"{one.name}: {count_text(done.merges, 'merge')} of "
        f"{count_text(done.rows_read, 'update')} to {done.rows_written:,}, "
        f"{bytes_text(done.bytes_read)} to {bytes_text(done.bytes_written)}; {has} now"
    )
