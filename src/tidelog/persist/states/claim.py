"""Claims: a merge that somebody is at, so that no other reads as much to write the same.

A claim decides nothing: what a merge comes to is decided by its inputs. Its time is over by the
wall clock, so that the work of who died over it is done by another; only large merges have one, as
it costs a record.
Source: persist, "Compaction"; design page 4, "State machine".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from tidelog.frontier import TIME_MAX
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.hold import CLOCKS_APART_US

CLAIMED_BYTES: Final = 32 * 1024 * 1024
CLAIM_US: Final = 300_000_000  # And a microsecond a byte.


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Whose to merge the batches in ``[lower, upper)`` are, until ``until_us`` (wall time)."""

    lower: int
    upper: int | None
    who: str
    until_us: int
    extra: dict[str, Any] = {}

    def covers(self, lower: int, upper: int | None) -> bool:
        """Say whether some of these times are claimed."""
        return self.lower < _end(upper) and lower < _end(self.upper)


def live_claims(
    claims: Sequence[Claim], *, now_us: int, size_bytes: int, but: str = ""
) -> tuple[Claim, ...]:
    """Return the claims whose time is not over, but somebody's own.

    One that reaches further than any of a shard of ``size_bytes`` can is of a clock that is wrong,
    and would hold up all others for as long.
    """
    last_us = now_us + CLAIM_US + size_bytes + CLOCKS_APART_US
    return tuple(one for one in claims if now_us < one.until_us <= last_us and one.who != but)


def without_claims(claims: Sequence[Claim], lower: int, upper: int | None) -> tuple[Claim, ...]:
    """Return the claims that do not cover some times: what was claimed there is done."""
    return tuple(one for one in claims if not one.covers(lower, upper))


def stretches(batches: Sequence[Batch], claims: Sequence[Claim]) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches that nobody claims, those that stand together as one."""
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
