"""How appends are gathered into batches, and how long they wait: what a user may set. Pure.

Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidelog.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """When a batch leaves: as soon as there is room and it is full, or time has passed.

    Units: ``batch_bytes`` of bodies fill a batch; ``interval_us`` is the least time between the
        beginnings of two that are not full; more than ``pending_bytes`` make appends wait. At most
        ``puts_per_second`` batches leave on average, and a second's worth of them at once: fewer
        cost less, and make appends wait longer. Where nothing was acknowledged for ``patience_us``,
        an append that has waited as long and was never sent is refused with the reason; one that
        was sent is told after twice that time that its outcome is not known. Time does not count
        in which nothing is under way, and the next batch waits for these settings; closing waits
        for ``puts_per_second``, too, and not for ``interval_us``.
    """

    batch_bytes: int = 8 * 1024 * 1024
    interval_us: int = 10_000
    pending_bytes: int = 64 * 1024 * 1024
    puts_per_second: float | None = None
    patience_us: int = 30_000_000

    def __post_init__(self) -> None:
        rate = self.puts_per_second
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError("puts_per_second is a number over 0", puts_per_second=rate)
        if self.patience_us <= 0:
            raise UsageError("patience_us is a number over 0", patience_us=self.patience_us)
