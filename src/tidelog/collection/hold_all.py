"""Holds on a collection: the same hold on each of its shards, so that its times stay readable.

A process that dies between two shards leaves them different. Each call here is idempotent, so the
caller repeats it. The since of a collection is the greatest since of its shards.
Source: design page 4, "Holds".
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.collection.catalog.lost import INGEST_HOLD
from tidelog.collection.formats.times import format_time
from tidelog.core.frontier import TIME_MAX, Frontier, join, meet
from tidelog.errors import NoSuchHold, UsageError
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.state import Hold, State


def check_not_own(name: str) -> None:
    """Check that a name is not that of the ingester's hold, without which no tick could follow.

    Raises:
        UsageError: the name is the ingester's.
    """
    if name == INGEST_HOLD:
        raise UsageError(
            f"the ingester owns the hold {name!r} of a collection, and moves it with each tick: "
            "choose another name"
        )


def check_newest_stays(states: Sequence[State], since: Frontier) -> None:
    """Check that a move of a hold keeps the newest contents readable, by the last known states.

    Raises:
        UsageError: ``since`` is after the newest contents, which readers and ingesters need.
    """
    newest = max(0, min(upper_time(state) for state in states) - 1)
    if since.is_empty or since.time > newest:
        raise UsageError(
            "the newest contents of a collection must stay readable: pass a time up to "
            f"{format_time(newest)}"
        )


def upper_time(state: State) -> int:
    """Return the upper of a state as a time; that of a finished shard is `TIME_MAX`."""
    upper = state.upper_frontier
    return TIME_MAX if upper.is_empty else upper.time


async def place_hold(
    shards: Sequence[Shard], name: str, since: Frontier | None, *, token: int | None = None
) -> Frontier:
    """Place a hold at ``since`` (default: the since of the collection); return its frontier.

    An existing hold of the name does not move.

    Raises:
        UsageError: the time is before since, or not complete yet.
        HoldFenced: the hold has a newer owner.
        LocationError: the store failed. Some shards may have the hold; the call can be repeated.
    """
    for shard in shards:
        await shard.refresh()
    least = join([shard.state.since_frontier for shard in shards]) if since is None else since
    placed = [await shard.hold(name, least, token=token) for shard in shards]
    return meet(placed)


async def move_hold(
    shards: Sequence[Shard], name: str, since: Frontier, *, token: int | None = None
) -> Frontier:
    """Move a hold forward; return the since of the collection.

    Raises:
        UsageError: ``since`` is not complete yet. NoSuchHold: no shard has the hold.
        HoldFenced: the hold has a newer owner. LocationError: the store failed; call again.
    """
    for shard in shards:
        await shard.refresh()
    holds_of(shards, name)
    moved = []
    for shard in shards:
        await shard.hold(name, token=token)  # An earlier, killed call may have left this shard out.
        moved.append(await shard.move_hold(name, since, token=token))
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
            await shard.move_hold(INGEST_HOLD, upper - 1)


async def drop_hold(shards: Sequence[Shard], name: str, *, token: int | None = None) -> bool:
    """Release a hold; return True if some shard had it.

    Raises:
        HoldFenced: the hold has a newer owner. LocationError: the store failed; call again.
    """
    return any([await shard.drop_hold(name, token=token) for shard in shards])


def holds_of(shards: Sequence[Shard], name: str) -> list[Hold]:
    """Return the hold of a name on each shard that has it, as of the last refresh.

    Raises:
        NoSuchHold: no shard has it; the message lists the existing holds.
    """
    found = [shard.state.holds[name] for shard in shards if name in shard.state.holds]
    if not found:
        known = sorted({one for shard in shards for one in shard.state.holds})
        raise NoSuchHold(
            f"no hold named {name!r}: "
            + (f"existing holds: {', '.join(known)}" if known else "create it first")
        )
    return found
