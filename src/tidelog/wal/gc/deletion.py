"""Deletion at a limited rate, which leaves capacity of the store to readers and writers.

If the process dies in between, a first part is deleted. The next collection or sweep continues with
the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import check_above_zero, check_kind, check_whole
from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.port import Store

BATCH_MAX: Final = 1_000
PER_SECOND_LEAST: Final = 0.001
PER_SECOND_MOST: Final = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The rate of deletions.

    Units:
        per_second: objects per second on average, deleted in batches of a tenth of that or of one.
        None is unlimited.
    """

    per_second: float | None = None

    def __post_init__(self) -> None:
        rate = self.per_second
        if rate is None:
            return
        check_above_zero(rate, "the pace (objects per second)")
        if not PER_SECOND_LEAST <= rate <= PER_SECOND_MOST:
            raise UsageError(
                "the pace of deletions must be from 0.001 to 1,000,000 objects per second, or "
                "None for no limit",
                per_second=rate,
            )

    def batches(self, keys: Sequence[str]) -> list[Sequence[str]]:
        """Return the keys in batches, in order. Pure."""
        if self.per_second is None:
            return [keys] if keys else []
        # At most ten batches per second: more would waste requests.
        size = min(BATCH_MAX, max(1, int(self.per_second / 10)))
        return [keys[at : at + size] for at in range(0, len(keys), size)]


AT_ONCE: Final = Pace()


def check_deletion(grace_us: int, pace: Pace) -> None:
    """Refuse invalid settings of a deletion.

    Raises:
        UsageError: a setting is invalid.
    """
    check_whole(grace_us, "grace_us")
    check_kind(pace, Pace, "pace must be a tidelog.Pace")


async def delete_all(store: Store, keys: Sequence[str], *, clock: Clock, pace: Pace) -> None:
    """Delete objects in order, at a limited rate.

    Raises:
        LocationError: the store failed; some objects were deleted.
    """
    due_us = clock.monotonic_us()
    for batch in pace.batches(keys):
        if (early_us := due_us - clock.monotonic_us()) > 0:
            await clock.sleep(early_us)
        await store.delete(batch)
        if pace.per_second is not None:
            due_us = max(due_us, clock.monotonic_us()) + int(len(batch) / pace.per_second * 1e6)
