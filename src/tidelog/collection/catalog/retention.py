"""Retention: how far back a collection can be read, and the hold that says so.

Each shard that readers read has the hold ``history``. It stands at 0 until a collection is told for
how long it keeps its past; from then on each tick moves it, in the commit that it makes anyway.
Source: design page 4, "Holds".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.collection.formats.times import duration_text, parse_duration_ms
from tidelog.errors import UsageError
from tidelog.frontier import Frontier
from tidelog.persist.handle.shard import Shard

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


async def move_history(shards: Sequence[Shard], upper: Frontier, retain_ms: int) -> None:
    """Give up what is older than is to be kept; nothing, of a shard that nobody has written.

    Raises:
        LocationError: the store failed: some may have been moved; do it again.
    """
    if upper.is_empty:
        return
    for shard in shards:
        if HISTORY_HOLD in (await shard.refresh()).holds:
            await shard.downgrade_since(HISTORY_HOLD, history_at(upper.time, retain_ms))
