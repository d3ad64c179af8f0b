"""A token bucket: a rate of puts per second, with bursts of one second's worth. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


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
