"""Retention: how far back a collection can be read, and the hold that enforces it.

Each shard that readers read has the hold ``history``. It is at 0 until a user sets a retention.
After that, each tick moves it. The move is part of the tick's commit, so it costs no request.
Source: design page 4, "Holds".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.collection.formats.times import duration_text, parse_duration_ms
from tidelog.core.frontier import Frontier, join, meet
from tidelog.errors import UsageError
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.holding import HISTORY_HOLD, decide_move_back
from tidelog.persist.states.state import State

FOREVER: Final = "forever"


def parse_retention_ms(text: str, *, what: str) -> int | None:
    """Parse a retention: a duration, or None for ``forever``.

    Raises:
        UsageError: the text is neither.
    """
    if text.strip().lower() == FOREVER:
        return None
    try:
        return parse_duration_ms(text, what=what)
    except UsageError as error:
        raise UsageError(f"{error.sentence}; or {FOREVER}") from None


def retention_text(retain_ms: int | None) -> str:
    """Return the text from which `parse_retention_ms` reads this retention."""
    return FOREVER if retain_ms is None else duration_text(retain_ms)


def history_at(upper: int, retain_ms: int) -> Frontier:
    """Return the frontier of the hold for a retention.

    The newest contents are at ``upper - 1``. They stay readable even if ``retain_ms`` is 0.
    """
    return Frontier.at(max(0, upper - 1 - retain_ms))


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The effect of a retention on the times that can be read.

    ``since`` is the earliest readable time now, and ``kept`` is the earliest one afterwards.
    ``kept`` is None if the collection keeps its whole past, or has no rows yet. ``holders`` names
    the other holds at times before ``kept``: those times stay readable until these holds move.
    """

    since: int
    kept: int | None
    holders: tuple[str, ...] = ()

    @property
    def gives_up(self) -> bool:
        """Return True if some times that are readable now will become unreadable."""
        return self.kept is not None and self.since < self.kept


def plan_retention(states: Sequence[State], retain_ms: int | None) -> RetentionPlan:
    """Return the effect of a retention on a collection whose shards have these states."""
    since = join([state.since_frontier for state in states])
    upper = meet([state.upper_frontier for state in states])
    readable = 0 if since.is_empty else since.time
    if retain_ms is None or upper.is_empty or not upper.time:
        return RetentionPlan(readable, None)
    kept = history_at(upper.time, retain_ms)
    earlier = {
        name
        for state in states
        for name, hold in state.holds.items()
        if name != HISTORY_HOLD and hold.frontier < kept
    }
    return RetentionPlan(readable, kept.time, tuple(sorted(earlier)))


async def move_history(shards: Sequence[Shard], upper: Frontier, retain_ms: int | None) -> None:
    """Move the hold ``history`` of each shard to the frontier of a retention.

    A shard without a commit has no such hold yet, and is skipped. A longer retention moves the hold
    back, at most to the shard's since: other holds may have kept times that an earlier, shorter
    retention had passed. A shorter retention moves the hold forward.

    Raises:
        LocationError: the store failed. Some holds may have moved; the call can be repeated.
    """
    if upper.is_empty:
        return
    at = Frontier.at(0) if retain_ms is None else history_at(upper.time, retain_ms)
    for shard in shards:
        if HISTORY_HOLD in (await shard.refresh()).holds:
            await shard.machine.commit(partial(decide_move_back, name=HISTORY_HOLD, since=at))
            await shard.move_hold(HISTORY_HOLD, at)
