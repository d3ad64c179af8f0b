"""Claims: a process reserves a merge, so that no other process does the same work.

A claim affects no result: a merge is applied only if its inputs are unchanged. A claim expires by
the wall clock, so that another process can take over the merge of a dead one. Only large merges are
claimed, because a claim costs a record.
Source: persist, "Compaction"; design page 4, "State machine".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from tidelog.core.frontier import TIME_MAX
from tidelog.persist.states.batch import Batch

CLAIMED_BYTES: Final = 32 * 1024 * 1024
CLAIM_US: Final = 300_000_000  # Plus one microsecond per byte.

# The greatest assumed difference between the clocks of two machines.
CLOCKS_APART_US: Final = 3_600_000_000


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Process ``who`` merges the batches in ``[lower, upper)`` until ``until_us`` (wall time)."""

    lower: int
    upper: int | None
    who: str
    until_us: int
    extra: dict[str, Any] = {}

    def covers(self, lower: int, upper: int | None) -> bool:
        """Return True if the claim overlaps these times."""
        return self.lower < _end(upper) and lower < _end(self.upper)


def live_claims(
    claims: Sequence[Claim], *, now_us: int, size_bytes: int, but: str = ""
) -> tuple[Claim, ...]:
    """Return the claims that have not expired, except those of ``but``.

    A claim on ``size_bytes`` has a longest possible term. A claim that ends later comes from a
    wrong clock. It is ignored, because it would block all other processes for too long.
    """
    last_us = now_us + CLAIM_US + size_bytes + CLOCKS_APART_US
    return tuple(one for one in claims if now_us < one.until_us <= last_us and one.who != but)


def without_claims(claims: Sequence[Claim], lower: int, upper: int | None) -> tuple[Claim, ...]:
    """Return the claims that do not overlap these times, whose merge is done."""
    return tuple(one for one in claims if not one.covers(lower, upper))


def stretches(batches: Sequence[Batch], claims: Sequence[Claim]) -> Iterator[tuple[Batch, ...]]:
    """Yield the longest sequences of adjacent batches that no claim covers."""
    free: list[Batch] = []
    for batch in batches:
        if not any(one.covers(batch.lower, batch.upper) for one in claims):
            free.append(batch)
        elif free:
            yield tuple(free)
            free = []
    if free:
        yield tuple(free)


def _end(upper: int | None) -> int:
    return TIME_MAX + 1 if upper is None else upper
