"""Holds on a collection: the same hold on each of its shards, so that its times stay readable.

A process that dies in between leaves the hold on some of them: it places, moves or releases it
again. A collection can be read from where the last of its shards can.
Source: design page 4, "Holds".
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.collection.catalog.lost import INGEST_HOLD
from tidelog.collection.formats.times import format_time
from tidelog.errors import NoSuchHold, UsageError
from tidelog.frontier import TIME_MAX, Frontier, join, meet
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.hold import Hold


def check_not_own(name: str) -> None:
    """Refuse a hold of a collection that is its ingester's: without it, no tick could follow.

    Raises:
        UsageError: it is.
    """
    if name == INGEST_HOLD:
        raise UsageError(
            f"the hold {name!r} of a collection is its ingester's own, which moves it with each "
            "tick: choose another name"
        )


def check_newest_stays(shards: Sequence[Shard], since: Frontier) -> None:
    """Refuse to give up a collection's newest contents, by the states that are known.

    Raises:
        UsageError: nothing could be read, nor ingested, after that.
    """
    newest = max(0, min(upper_time(shard) for shard in shards) - 1)
    if since.is_empty or since.time > newest:
        raise UsageError(
            "the newest contents of a collection stay readable: give a time up to "
            f"{format_time(newest)}"
        )


def upper_time(shard: Shard) -> int:
    """Return up to when a shard of a collection is complete."""
    upper = shard.state.upper_frontier
    return TIME_MAX if upper.is_empty else upper.time


async def place_hold(
    shards: Sequence[Shard], name: str, since: Frontier | None, *, token: int | None = None
) -> Frontier:
    """Place a hold (where all shards can be read, unless told), or find it; gives where it is.

    Raises:
        UsageError: ``since`` is no longer kept, or past what is complete. HoldFenced: a newer owner
            has it. LocationError: the store failed: some shards may have it.
    """
    for shard in shards:
        await shard.refresh()
    least = join([shard.state.since_frontier for shard in shards]) if since is None else since
    placed = [await shard.hold(name, least, token=token) for shard in shards]
    return meet(placed)


async def move_hold(
    shards: Sequence[Shard], name: str, since: Frontier, *, token: int | None = None
) -> Frontier:
    """Move a hold up; gives from where on all shards can be read.

    Raises:
        UsageError: ``since`` is past what is complete. NoSuchHold: there is none of the name.
        HoldFenced: a newer owner has it. LocationError: the store failed: do it again.
    """
    for shard in shards:
        await shard.refresh()
    holds_of(shards, name)
    moved = []
    for shard in shards:
        await shard.hold(name, token=token)  # Which a crash may have left out.
        moved.append(await shard.downgrade_since(name, since, token=token))
    return join(moved)


async def move_ingest_hold(shards: Sequence[Shard]) -> None:
    """Move the hold of a source's ingester to the newest contents, if no tick is under way.

    Each tick leaves the hold one tick behind. So without this, the past of an idle source stays
    readable for that long. ``shards`` are all of the source.

    Raises:
        LocationError: the store failed; call again.
    """
    for shard in shards:
        await shard.refresh()
    uppers = {shard.state.upper for shard in shards}
    upper = uppers.pop() if len(uppers) == 1 else None
    if not upper:
        return  # A binding is ahead of the output, or the source is new, or was dropped.
    for shard in shards:
        found = shard.state.holds.get(INGEST_HOLD)
        if found is not None and found.frontier < Frontier.at(upper - 1):
            await shard.downgrade_since(INGEST_HOLD, upper - 1)


async def release_hold(shards: Sequence[Shard], name: str, *, token: int | None = None) -> bool:
    """Drop a hold; gives whether there was one.

    Raises:
        HoldFenced: a newer owner has it. LocationError: the store failed: do it again.
    """
    return any([await shard.release(name, token=token) for shard in shards])


def holds_of(shards: Sequence[Shard], name: str) -> list[Hold]:
    """Return the hold of a name on each shard that has it, as of the last refresh.

    Raises:
        NoSuchHold: none has; the message names those that there are.
    """
    found = [shard.state.holds[name] for shard in shards if name in shard.state.holds]
    if not found:
        known = sorted({one for shard in shards for one in shard.state.holds})
        raise NoSuchHold(
            f"there is no hold {name!r}: "
            + (f"there are {', '.join(known)}" if known else "place it first")
        )
    return found
