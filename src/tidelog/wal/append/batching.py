"""Settings of batches: when a batch is sent, and how long appends wait. Pure.

Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import check_above_zero, check_whole
from tidelog.errors import UsageError

PATIENCE_LEAST_US: Final = 1_000_000
PER_SECOND_LEAST: Final = 0.001
PER_SECOND_MOST: Final = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The conditions to send a batch: a slot is free, and the batch is full or its time has come.

    Units:
        batch_bytes: bytes of bodies that fill a batch.
        interval_us: least time between the starts of two batches that are not full. Closing does
        not wait for it.
        pending_bytes: bytes of pending records; above that, further appends wait.
        puts_per_second: batches per second on average, from 0.001 to 1,000,000, with bursts of a
        second's worth. A low rate costs less, and makes appends and closing wait longer.
        patience_us: the limit on a silent store. If nothing was acknowledged for so long, an append
        that waited as long and was never sent fails with the reason. An append that was sent ends
        in `OutcomeUnknown` after twice the time. Time does not count while nothing is in flight and
        these settings delay the next batch. A put is sent again for about 8 s before it counts as
        refused; less patience cuts this short. Less than a second is refused, because a distant
        store may need as long to open a log.
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
                    "puts_per_second must be from 0.001 to 1,000,000, or None for no limit",
                    puts_per_second=self.puts_per_second,
                )
        check_whole(self.patience_us, "patience_us")
        if self.patience_us < PATIENCE_LEAST_US:
            raise UsageError(
                "patience_us must be at least 1,000,000 (a second): a healthy store may take "
                "that long",
                patience_us=self.patience_us,
            )
