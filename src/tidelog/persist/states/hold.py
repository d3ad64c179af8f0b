"""Holds: they keep the times and objects that a reader may still need.

A *critical* hold has a name and no expiry. Its owner may have a fencing token, which a later owner
outbids with a greater one.

The owner of a *leased* hold renews it. Another process ends it through consensus after it saw the
same beat for the whole lease. That process measures by the time since the start of one machine, or
by wall times less an hour.

A *fixed-term* hold is never renewed.

Correctness does not depend on leases. A reader whose lease is over finds its parts, or the same
rows in newer parts, or gets an error.

Source: persist, "Capabilities" and "Leasing"; design page 4, "Holds".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidelog.core.frontier import Frontier, meet
from tidelog.errors import HoldExpired, HoldFenced, UsageError

HISTORY_HOLD: Final = "history"  # The hold of each shard that sets how much history it keeps.

# The greatest assumed difference between the clocks of two machines.
CLOCKS_APART_US: Final = 3_600_000_000
Holds = Mapping[str, "Hold"]


class HoldKind(enum.Enum):
    """The event that ends a hold without its owner."""

    CRITICAL = "critical"  # None: only its owner ends it.
    LEASED = "leased"  # A whole lease without a renewal.
    FIXED = "fixed"  # The end of its term.


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """One hold: it keeps the times since ``since`` distinct, and states since ``seqno`` readable.

    Units: ``lease_us`` in microseconds, 0 for a critical hold; ``at_us`` is the wall time of the
        last beat, by the owner's clock.
    Shape: ``seqno`` is None if the hold keeps no objects except those of the newest state.
    """

    since: int | None
    token: int = 0
    lease_us: int = 0
    is_fixed: bool = False
    beat: int = 0
    at_us: int = 0
    seqno: int | None = None
    purpose: str = ""
    extra: dict[str, Any] = {}

    @property
    def kind(self) -> HoldKind:
        if not self.lease_us:
            return HoldKind.CRITICAL
        return HoldKind.FIXED if self.is_fixed else HoldKind.LEASED

    @property
    def frontier(self) -> Frontier:
        return Frontier.of(self.since)

    @property
    def until_us(self) -> int | None:
        """The wall time, by the owner's clock, at which the hold ends without a renewal."""
        return self.at_us + self.lease_us if self.lease_us else None


def least_since(holds: Holds) -> Frontier:
    """Return the earliest time that a hold needs; the empty frontier if there are no holds."""
    return meet(hold.frontier for hold in holds.values())


def least_seqno(holds: Holds) -> int | None:
    """Return the earliest seqno that a hold needs; None if no hold needs one."""
    return min((h.seqno for h in holds.values() if h.seqno is not None), default=None)


def find_hold(holds: Holds, name: str, *, token: int | None) -> Hold:
    """Return a hold if the owner of ``token`` (None: no token) may move it.

    Raises:
        UsageError: no such hold. HoldFenced: the hold has a newer owner.
    """
    hold = holds.get(name)
    if hold is None:
        raise UsageError("no hold has that name: place it first", hold=name)
    check_token(name, hold, token)
    return hold


def check_token(name: str, hold: Hold, token: int | None) -> None:
    """Refuse an owner whom a newer owner has fenced.

    Raises:
        HoldFenced: the hold has a greater token; the error has that token and the hold's since.
    """
    if hold.token and (token or 0) < hold.token:
        raise HoldFenced(
            "the hold has a newer owner: stop, or place the hold again with a greater token",
            hold=name,
            token=hold.token,
            given=0 if token is None else token,
            since=hold.frontier,
        )


def find_lease(holds: Holds, name: str) -> Hold:
    """Return a leased hold.

    Raises:
        HoldExpired: the lease is over.
    """
    hold = holds.get(name)
    if hold is None:
        raise HoldExpired(
            "the lease of this reader has ended, and a collector may have deleted the objects "
            "that it held: open another reader, with a longer lease if reads are slow",
            hold=name,
        )
    return hold


class Beats:
    """The beats of leases that this process has seen, and when it first saw each."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def overdue(self, holds: Holds, *, monotonic_us: int, now_us: int) -> list[tuple[str, int]]:
        """Return the holds that may be ended, each with its current beat.

        A hold may be ended if its beat did not change for its whole lease by our clock. It may also
        be ended if its own clock and ours agree that it is over, by more than clocks may differ.
        """
        leased = {name: hold for name, hold in holds.items() if hold.lease_us}
        self._seen = {n: seen for n, seen in self._seen.items() if n in leased}
        found = []
        for name, hold in leased.items():
            beat, since_us = self._seen.get(name, (-1, 0))
            if beat != hold.beat:
                self._seen[name] = (hold.beat, monotonic_us)
                since_us = monotonic_us
            waited = monotonic_us - since_us >= hold.lease_us
            if waited or now_us > hold.at_us + hold.lease_us + CLOCKS_APART_US:
                found.append((name, hold.beat))
        return found
