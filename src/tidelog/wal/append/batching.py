"""Settings of batches, and the rate of puts: when a batch is sent, how long appends wait. Pure.

Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The tokens left at a moment. The bucket holds one second's worth, and at least one.

    Units:
        at_us: monotonic time.
    """

    per_second: float
    tokens: float
    at_us: int

    @property
    def capacity(self) -> float:
        return max(1.0, self.per_second)


def full(per_second: float, now_us: int) -> TokenBucket:
    """Return a full bucket."""
    return TokenBucket(per_second, max(1.0, per_second), now_us)


def wait_us(bucket: TokenBucket, now_us: int) -> int:
    """Return the time until the bucket has a token; 0 if it has one now."""
    missing = 1.0 - _refilled(bucket, now_us).tokens
    return max(0, math.ceil(missing / bucket.per_second * 1e6))


def spend(bucket: TokenBucket, now_us: int) -> TokenBucket:
    """Take a token. The bucket must have one."""
    refilled = _refilled(bucket, now_us)
    return replace(refilled, tokens=max(0.0, refilled.tokens - 1.0))


def _refilled(bucket: TokenBucket, now_us: int) -> TokenBucket:
    gained = max(0, now_us - bucket.at_us) * bucket.per_second / 1e6
    tokens = min(bucket.capacity, bucket.tokens + gained)
    return replace(bucket, tokens=tokens, at_us=max(now_us, bucket.at_us))
