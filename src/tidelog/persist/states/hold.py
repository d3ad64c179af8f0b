"""Holds: what somebody may still read, so that neither times nor objects that it needs may go.

Three kinds. A *critical* hold has a name and survives everything; who moves it may have a fencing
token, which a later owner outbids. A *leased* one is renewed by whoever has it; others end it,
through consensus, once they have seen the same beat of it for its whole lease. They measure that
by the time since the start of one machine, or by wall times less an hour. A *fixed-term* one is
never renewed. Correctness rests on no lease: a reader whose lease is over finds its parts, or the
same rows in newer ones, or gets an error.
Source: persist, "Capabilities" and "Leasing"; design page 4, "Holds".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidelog.errors import HoldExpired, HoldFenced, UsageError
from tidelog.frontier import Frontier, meet

CLOCKS_APART_US: Final = 3_600_000_000  # By how much two machines' clocks may differ.
Holds = Mapping[str, "Hold"]


class HoldKind(enum.Enum):
    """What ends a hold besides its owner."""

    CRITICAL = "critical"  # Nothing.
    LEASED = "leased"  # Not to be renewed for a whole lease.
    FIXED = "fixed"  # That its time is over.


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """One hold: times from ``since`` on can be told apart, and states from ``seqno`` on be read.

    Units: ``lease_us`` microseconds, 0 for a critical hold; ``at_us`` is the wall time of its last
        beat, by its owner's clock.
    Shape: ``seqno`` is None where no objects are held besides those of the newest state.
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
        """The wall time at which it is over, by its owner's clock, if it is not renewed."""
        return self.at_us + self.lease_us if self.lease_us else None


def least_since(holds: Holds) -> Frontier:
    """Return the earliest time that a hold needs; the empty frontier if there is none."""
    return meet(hold.frontier for hold in holds.values())


def least_seqno(holds: Holds) -> int | None:
    """Return the earliest seqno that a hold needs; None if none needs one."""
    return min((h.seqno for h in holds.values() if h.seqno is not None), default=None)


def find_hold(holds: Holds, name: str, *, token: int | None) -> Hold:
    """Return a hold that somebody with a token (None: without one) may move.

    Raises:
        UsageError: there is no such hold. HoldFenced: a newer owner has it.
    """
    hold = holds.get(name)
    if hold is None:
        raise UsageError("there is no such hold: place it first", hold=name)
    check_token(name, hold, token)
    return hold


def check_token(name: str, hold: Hold, token: int | None) -> None:
    """Refuse whom a newer owner has fenced off.

    Raises:
        HoldFenced: so it is; the message has the token that counts, and where the hold stands.
    """
    if hold.token and (token or 0) < hold.token:
        raise HoldFenced(
            "the hold has a newer owner: take it over with a greater token, if it is yours to take",
            hold=name,
            token=hold.token,
            given=0 if token is None else token,
            since=hold.frontier,
        )


def find_lease(holds: Holds, name: str) -> Hold:
    """Return a leased hold.

    Raises:
        HoldExpired: it is over.
    """
    hold = holds.get(name)
    if hold is None:
        raise HoldExpired(
            "the lease of this reader is over, and others may have taken what it held: open "
            "another reader, with a longer lease if it is slow",
            hold=name,
        )
    return hold


class Beats:
    """What one process has seen of the leases of others: since when they have stood still."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def overdue(self, holds: Holds, *, monotonic_us: int, now_us: int) -> list[tuple[str, int]]:
        """Return the holds that may be ended, with the beat they stand at.

        That are those seen at one beat for their whole lease by our clock; and those whose own
        clock and ours both say that they are over, by more than clocks may differ.
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
