"""Retention: how far back a collection can be read, and the hold that says so.

Each shard that readers read has the hold ``history``. It stands at 0 until a collection is told for
how long it keeps its past; from then on each tick moves it, in the commit that it makes anyway.
Source: design page 4, "Holds".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.collection.formats.times import duration_text, parse_duration_ms
from tidelog.errors import UsageError
from tidelog.frontier import Frontier, join, meet
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.holding import decide_move_back
from tidelog.persist.states.state import State

HISTORY_HOLD: Final = "history"
FOREVER: Final = "forever"


def parse_retention_ms(text: str, *, what: str) -> int | None:
    """Read for how long the past is kept: a duration, or None for ``forever``.

    Raises:
        UsageError: it is neither.
    """
    if text.strip().lower() == FOREVER:
        return None
    try:
        return parse_duration_ms(text, what=what)
    except UsageError as error:
        raise UsageError(f"{error.sentence}; or {FOREVER}") from None


def retention_text(retain_ms: int | None) -> str:
    """Write for how long the past is kept, as `parse_retention_ms` reads it."""
    return FOREVER if retain_ms is None else duration_text(retain_ms)


def history_at(upper: int, retain_ms: int) -> Frontier:
    """Return where the hold stands that keeps so much: the newest contents stay in any case."""
    return Frontier.at(max(0, upper - 1 - retain_ms))


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The effect of a retention: times since ``since`` can be read, times since ``kept`` stay.

    ``kept`` is None if the collection keeps all, or has no rows yet. ``holders`` are the other
    holds at earlier times, which keep more until they are moved.
    """

    since: int
    kept: int | None
    holders: tuple[str, ...] = ()

    @property
    def gives_up(self) -> bool:
        """Return True if times that can be read now will be given up."""
        return self.kept is not None and self.since < self.kept


def plan_retention(states: Sequence[State], retain_ms: int | None) -> RetentionPlan:
    """Return what a retention changes of a collection whose shards have these states."""
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
    """Move the hold ``history`` to where a retention has it; a new shard has none.

    A longer retention moves it back, as far as the shard can be read: an earlier, shorter one may
    have moved it past times that other holds still keep. A shorter one moves it up.

    Raises:
        LocationError: the store failed: some may have been moved; do it again.
    """
    if upper.is_empty:
        return
    at = Frontier.at(0) if retain_ms is None else history_at(upper.time, retain_ms)
    for shard in shards:
        if HISTORY_HOLD in (await shard.refresh()).holds:
            await shard.machine.commit(partial(decide_move_back, name=HISTORY_HOLD, since=at))
            await shard.downgrade_since(HISTORY_HOLD, at)
