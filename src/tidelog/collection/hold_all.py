"""Holds on a collection: the same hold on each of its shards, so that its times stay readable.

Shards of one group get a hold together, or none does. Otherwise, a process that dies between two
shards leaves them different. Each call here is idempotent, so the caller repeats it. The since of a
collection is the greatest since of its shards.

A hold on a collection that was handed over holds each rendition as far as it is needed. Where the
second rendition is read from the time T on, a hold at an earlier time h is at h on the first one,
and at T on the second. Below, eras are such renditions, oldest first.
Source: design page 4, "Holds"; page 6, "Conditions of a handover".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from tidelog.collection.catalog.catalog import INGEST_HOLD
from tidelog.collection.formats.times import format_time
from tidelog.core.frontier import TIME_MAX, Frontier, join, meet
from tidelog.core.ids import ShardId
from tidelog.errors import HoldFenced, NoSuchHold, UsageError
from tidelog.persist.handle.shard import Shard
from tidelog.persist.handle.together import by_group, hold_together, refresh_all
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


def check_newest_stays(upper: Frontier, since: Frontier) -> None:
    """Check that a move of a hold keeps the newest contents readable, by a collection's upper.

    Raises:
        UsageError: ``since`` is after the newest contents, which readers and ingesters need.
    """
    newest = max(0, (TIME_MAX if upper.is_empty else upper.time) - 1)
    if since.is_empty or since.time > newest:
        raise UsageError(
            "the newest contents of a collection must stay readable: pass a time up to "
            f"{format_time(newest)}"
        )


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
    while True:
        await refresh_all(shards)
        least = _since_of(shards) if since is None else since
        try:
            placed = await _place([(shard, least) for shard in shards], name, token=token)
        except UsageError:
            await refresh_all(shards)
            moved = _since_of(shards)
            if since is not None or moved.is_empty or moved == least:
                raise
            continue  # Retention has moved meanwhile, and the caller chose no time.
        # A shard may still have the hold from before retention moved; the others have not.
        return meet(placed) if since is not None else join([meet(placed), least])


async def _place(
    wanted: Sequence[tuple[Shard, Frontier]], name: str, *, token: int | None
) -> list[Frontier]:
    """Place a hold on each shard at its time, group by group; return the frontiers in order."""
    placed: dict[ShardId, Frontier] = {}
    times = {shard.id: at for shard, at in wanted}
    for shards in by_group([shard for shard, _ in wanted]):
        if len(shards) == 1:
            found = [await shards[0].hold(name, times[shards[0].id], token=token)]
        else:
            found = await hold_together([(one, times[one.id]) for one in shards], name, token=token)
        placed.update(zip((one.id for one in shards), found, strict=True))
    return [placed[shard.id] for shard, _ in wanted]


async def carry_over(former: Shard, shards: Sequence[Shard], name: str, at: int) -> None:
    """Place a reader's hold on the rendition after a handover, with the owner's token.

    ``former`` is the first shard of the former rendition. If all are of one group, the hold is
    placed only while that shard has it. So a hold that its reader drops meanwhile is not placed
    after the drop.

    Raises:
        UsageError: see `place_hold`. LocationError: the store failed; call again.
    """
    found = former.state.holds.get(name)
    if found is None:
        return
    with suppress(HoldFenced):  # A newer owner has placed it there by itself.
        await refresh_all(shards)
        if len(by_group([former, *shards])) > 1:
            await place_hold(shards, name, Frontier.at(at), token=found.token or None)
            return
        wanted = [(shard, Frontier.at(at)) for shard in shards]
        await hold_together(wanted, name, token=found.token or None, owner=former)


def _since_of(shards: Sequence[Shard]) -> Frontier:
    return join([shard.state.since_frontier for shard in shards])


async def move_hold(
    shards: Sequence[Shard], name: str, since: Frontier, *, token: int | None = None
) -> Frontier:
    """Move a hold forward; return the since of the collection.

    Raises:
        UsageError: ``since`` is not complete yet. NoSuchHold: no shard has the hold.
        HoldFenced: the hold has a newer owner. LocationError: the store failed; call again.
    """
    await refresh_all(shards)
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
    await refresh_all(shards)
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


class HeldEra(Protocol):
    """The part of a rendition's handle on which holds are placed: read from ``begins`` on."""

    begins: int

    @property
    def all_shards(self) -> Sequence[Shard]: ...


async def place_on(
    eras: Sequence[HeldEra],
    name: str,
    since: Frontier | None,
    *,
    earliest: Frontier,
    token: int | None = None,
) -> Frontier:
    """Place a hold on each era that is read at ``since`` or later; return its frontier.

    Without ``since``, the hold keeps all times from ``earliest`` on, the since of the collection.

    Raises:
        All errors of `place_hold`.
    """
    while True:
        needed = _needed(eras, since or earliest)
        shards = [shard for era, _ in needed for shard in era.all_shards]
        await refresh_all(shards)
        wanted = [(shard, at) for era, at in needed for shard in era.all_shards]
        try:
            placed = await _place(wanted, name, token=token)
        except UsageError:
            await refresh_all(shards)
            now = [(era.begins, [one.state for one in era.all_shards]) for era, _ in needed]
            moved = earliest_of(now)
            if since is not None or moved.is_empty or moved == earliest:
                raise
            earliest = moved  # Retention has moved meanwhile, and the caller chose no time.
            continue
        first = placed[: len(needed[0][0].all_shards)]
        # A shard may still have the hold from before retention moved; the others have not.
        return meet(first) if since is not None else join([meet(first), needed[0][1]])


def earliest_of(eras: Sequence[tuple[int, Sequence[State]]]) -> Frontier:
    """Return the time from which all later ones are readable. Pure.

    Shape: ``eras`` are the time from which readers read each rendition, and the states of its
        shards, oldest first.
    """
    found: list[Frontier] = []
    for begins, states in reversed(eras):
        first, own = Frontier.at(begins), join([state.since_frontier for state in states])
        if first < own:
            # The times before it are unreadable, also those of earlier renditions.
            return min([*found, own])
        found.append(first)
    return min(found)


async def move_on(
    eras: Sequence[HeldEra], name: str, since: Frontier, *, token: int | None = None
) -> Frontier:
    """Move a hold forward, and release it from the eras before; return the earliest time left.

    Raises:
        All errors of `move_hold`.
    """
    holds_of([shard for era in eras for shard in era.all_shards], name)
    needed, moved = _needed(eras, since), []
    for era, at in needed:
        # An earlier, killed call may have left this era out.
        await place_hold(era.all_shards, name, None, token=token)
        moved.append(await move_hold(era.all_shards, name, at, token=token))
    for era in eras[: -len(needed)]:
        await drop_hold(era.all_shards, name, token=token)
    return moved[0]


def _needed(eras: Sequence[HeldEra], since: Frontier) -> list[tuple[HeldEra, Frontier]]:
    """Return the eras that are read at ``since`` or later, with the time to hold each of them at.

    The newest era comes last, and is always there.
    """
    last = next(n for n in reversed(range(len(eras))) if not n or eras[n].begins <= since.time)
    return [(era, max(since, Frontier.at(era.begins), key=_time)) for era in eras[last:]]


def _time(frontier: Frontier) -> int:
    return frontier.time


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
