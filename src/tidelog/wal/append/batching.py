"""How appends are gathered into batches, and how long they wait: what a user may set. Pure.

Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.arguments import check_above_zero, check_whole
from tidelog.errors import UsageError

PATIENCE_LEAST_US: Final = 1_000_000
PER_SECOND_LEAST: Final = 0.001
PER_SECOND_MOST: Final = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """When a batch leaves: as soon as there is room and it is full, or time has passed.

    Units: ``batch_bytes`` of bodies fill a batch; ``interval_us`` is the least time between the
        beginnings of two that are not full; more than ``pending_bytes`` make appends wait. At most
        ``puts_per_second`` batches leave on average, and a second's worth of them at once: fewer
        cost less, and make appends wait longer. Where nothing was acknowledged for ``patience_us``,
        an append that has waited as long and was never sent is refused with the reason; one that
        was sent is told after twice that time that its outcome is not known. A put is sent again
        for some 8 s before it counts as refused: less than that cuts it short, and less than a
        second, in which a far store may not even open a log, is refused. Time does not count in
        which nothing is under way, and the next batch waits for these settings; closing waits for
        ``puts_per_second``, too, and not for ``interval_us``. ``puts_per_second`` is from 0.001 to
        1,000,000.
    """

    batch_bytes: int = 8 * 1024 * 1024
    interval_us: int = 10_000
    pending_bytes: int = 64 * 1024 * 1024
    puts_per_second: float | None = None
    patience_us: int = 30_000_000

    def __post_init__(self) -> None:
        for name in ("batch_bytes", "interval_us", "pending_bytes"):
            check_whole(getattr(self, name), name)
        if self.puts_per_second is not None:
            check_above_zero(self.puts_per_second, "puts_per_second")
            if not PER_SECOND_LEAST <= self.puts_per_second <= PER_SECOND_MOST:
                raise UsageError(
                    "batches leave at 0.001 to 1,000,000 puts a second, or at any rate (None)",
                    puts_per_second=self.puts_per_second,
                )
        check_whole(self.patience_us, "patience_us")
        if self.patience_us < PATIENCE_LEAST_US:
            raise UsageError(
                "patience is of a second or more: a store that is well may take that long",
                patience_us=self.patience_us,
            )
