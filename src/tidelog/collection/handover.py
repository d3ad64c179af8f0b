"""The handover of a collection: its readers read another rendition from one time on.

A mark in the state of the first shard of the rendition that they read makes it. Before the mark, a
hold keeps its time readable in the other rendition; see `tidelog.collection.renditions`.
Source: storage, "Renditions"; design page 6, "Conditions of a handover".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidelog.collection.catalog.catalog import INGEST_HOLD, Era, RenditionInfo
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.collection import Collection
from tidelog.collection.collections import Collections
from tidelog.collection.formats.times import format_time
from tidelog.collection.hold_all import carry_over, drop_hold, place_hold
from tidelog.collection.ingest.copying import is_of_copy
from tidelog.collection.unfinished import HANDOVER_HOLD
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier
from tidelog.errors import DeadlineExceeded, HandoverRefused, UsageError
from tidelog.persist.handle.listening import NotYet, Patience, poll
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.handover import decide_mark
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.persist.states.state import HoldKind, Mark

_TO_ANOTHER: Final = "hand over to another rendition"
_OWN_HOLDS: Final = (HISTORY_HOLD, INGEST_HOLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handovers:
    """The steps of handovers in one location."""

    clock: Clock
    controller: Controller
    collections: Collections

    async def active(self, of: str) -> Collection:
        """Return the newest handle of a collection.

        Raises:
            NoSuchCollection: no collection has the name.
            UsageError: it is a table, or the bad rows of a source.
        """
        catalog = await self.controller.catalog()
        catalog.collection(of)
        found = self.collections.opened(catalog, of)
        if found.table is not None:
            raise UsageError(
                f"{of!r} is a table: only a collection that a source feeds can have several "
                "renditions"
            )
        await found.refresh()
        return found

    async def settled(self, of: str) -> Collection:
        """Do what follows each mark, and return the newest handle of the collection.

        The holds of readers go to the other rendition. A hold that is placed later is on both,
        because its owner meets the mark. The rest waits until the former rendition is complete:
        until then no reader can cross, so the hold of the handover stays. At the end the catalog
        gets a copy of the mark.
        """
        active = await self.active(of)
        recorded = {era.rendition for era in (await self.controller.catalog()).collection(of).eras}
        for era in active.eras:
            former = era.former
            if former is None or era.rendition.id in recorded:
                continue
            for name in await _holds_of_readers(former):
                await carry_over(former.first_shard, era.all_shards, name, era.begins)
            if not former.is_complete:
                break
            held = {name for shard in era.all_shards for name in shard.state.holds}
            for name in sorted(held):
                if name.startswith(HANDOVER_HOLD):
                    await drop_hold(era.all_shards, name)
            info = era.rendition
            await self.controller.record_handover(of, Era(info.id, era.begins, info.called))
        return active

    async def make(self, of: str, *, to: str, asked: int | None, patience: Patience) -> int:
        """Hand a collection over at the time ``asked``; see `Renditions.handover`."""
        begun_us, timeout_us = self.clock.monotonic_us(), patience.timeout_us
        while True:
            active = await self.settled(of)
            catalog = await self.controller.catalog()
            target = catalog.rendition(to)
            done = active.begins if active.rendition.id == target.id else None
            if done and asked in (None, done):
                return done
            _check_target(active, target)
            latter = self.collections.of_rendition(catalog, target)
            if timeout_us is not None:
                left_us = timeout_us - (self.clock.monotonic_us() - begun_us)
                patience = replace(patience, timeout_us=max(0, left_us))
            # The handle continues with the successor if another process hands over meanwhile.
            first = active.first_shard
            time = await self._time_of(active, latter, asked, patience)
            if time is None:
                continue
            try:
                await self._mark(first, latter, time)
            except HandoverRefused:
                state = first.state
                if asked is not None or state.mark or state.upper_frontier <= Frontier.at(time):
                    raise
                continue  # The upper has passed the time that this call chose.
            await self.settled(of)
            return time

    async def _time_of(
        self, active: Collection, latter: Collection, asked: int | None, patience: Patience
    ) -> int | None:
        """Return the time of a handover whose conditions hold, by the newest states.

        None means that readers read another rendition since ``active`` was opened.

        Raises:
            HandoverRefused, DeadlineExceeded: they do not hold.
        """
        first, name, behind = active.first_shard, latter.rendition.called, ""

        async def look() -> tuple[int | None] | NotYet:
            nonlocal behind
            await active.refresh()
            if active.first_shard.id != first.id:
                return (None,)
            await latter.refresh()
            upper, reached = first.state.upper_frontier, latter.upper
            if upper.is_empty:
                raise HandoverRefused(
                    "all times of the collection are complete: no time is left for a handover"
                )
            time = upper.time if asked is None else asked
            if active.begins and time <= active.begins:
                raise HandoverRefused(
                    f"the last handover is at {format_time(active.begins)}, and no reader has read "
                    "its rendition yet: ingest it first"
                )
            if not upper <= Frontier.at(time):
                raise HandoverRefused(
                    "readers may have read the collection at that time, because it is complete: "
                    f"pass at least {format_time(upper.time)}, or leave out the time",
                    asked=format_time(time),
                )
            if latter.since.is_empty:
                raise HandoverRefused(f"another process dropped {name!r}: {_TO_ANOTHER}")
            if not latter.since <= Frontier.at(time):
                since = format_time(latter.since.time)
                behind = f"{name!r} is readable since {since}: pass that time or a later one"
                if asked is None and patience.waits:
                    return NotYet(upper)  # The rendition that readers read is behind the other.
                raise HandoverRefused(behind if asked else f"{behind}, or wait")
            if Frontier.at(time) <= reached:
                return (time,)
            behind = _behind(name, reached, time)
            if patience.waits:
                return NotYet(reached)
            raise HandoverRefused(f"{behind}, or wait")

        try:
            (found,) = await poll(self.clock, look, 0 if asked is None else asked, patience)
            return found
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{behind}, or wait longer") from error

    async def _mark(self, first: Shard, latter: Collection, time: int) -> None:
        """Make the mark in a first shard, while a hold keeps its time readable in the other one.

        Raises:
            HandoverRefused: a reader may have read that time, another handover was first, or the
                time is no longer readable in the other rendition.
        """
        hold = f"{HANDOVER_HOLD}{time}"
        try:
            await place_hold(latter.all_shards, hold, Frontier.at(time))
        except UsageError as error:  # A merge or a drop was faster.
            await drop_hold(latter.all_shards, hold)
            raise HandoverRefused(
                f"{latter.rendition.called!r} is no longer readable at {format_time(time)}: begin "
                "again, with a later time",
                found=str(error),
            ) from error
        mark = Mark(time, latter.rendition.id)
        try:
            await first.machine.commit(partial(decide_mark, mark=mark))
        except HandoverRefused:
            await drop_hold(latter.all_shards, hold)
            raise


def _behind(name: str, reached: Frontier, time: int) -> str:
    """Return the reason against a handover to an incomplete rendition."""
    remedy = f"run 'tidelog ingest {name}'"
    if reached == Frontier.at(0):
        return f"the rendition {name!r} has no complete time yet: {remedy}"
    return (
        f"the rendition {name!r} is complete up to {format_time(reached.time - 1)}, and the "
        f"handover would be at {format_time(time)}: {remedy}"
    )


def _check_target(active: Collection, target: RenditionInfo) -> None:
    """Check that readers of a collection can change to a rendition.

    Raises:
        HandoverRefused: it is of another collection, was read before, or is being dropped.
    """
    if target.collection != active.rendition.collection:
        raise HandoverRefused(
            f"{target.called!r} is a rendition of {target.collection!r}, not of "
            f"{active.rendition.collection!r}: name a rendition of that collection"
        )
    if any(target.id == era.rendition.id for era in active.eras):
        raise HandoverRefused(
            f"readers read the rendition {target.called!r} now, or did before an earlier handover: "
            "create a new rendition"
        )
    former = active.former
    if former is not None and not former.upper.passed(active.begins - 1):
        name = active.rendition.collection
        raise HandoverRefused(
            f"the last handover of {name!r}, at {format_time(active.begins)}, waits for the times "
            f"before it: complete them with 'tidelog ingest {name}', and begin again"
        )
    if target.dropping is True:
        raise HandoverRefused(f"the drop of {target.called!r} has begun: {_TO_ANOTHER}")


def is_own(hold: str) -> bool:
    """Return True if a hold of a rendition is not one of its readers."""
    return hold in _OWN_HOLDS or hold.startswith(HANDOVER_HOLD)


async def _holds_of_readers(former: Collection) -> list[str]:
    """Return the names of the holds on a former rendition that only their owners end."""
    found: dict[str, None] = {}
    for shard in former.all_shards:
        state = await shard.refresh()
        found |= dict.fromkeys(
            name
            for name, hold in state.holds.items()
            if hold.kind is HoldKind.CRITICAL and not is_own(name) and not is_of_copy(name)
        )
    return list(found)
