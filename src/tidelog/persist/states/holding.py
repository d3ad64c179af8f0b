"""Decisions about holds: pure functions from a shard's state to a diff.

The since of a shard is the least time that a hold needs, and never goes back. It advances when a
hold moves, but not when a hold ends. Otherwise, the end of several holds at once could remove times
that a new reader is about to hold.

A *critical* hold has a name and no expiry. Its owner may have a fencing token, which a later owner
outbids with a greater one. The owner of a *leased* hold renews it. Another process ends it through
consensus after it saw the same beat for the whole lease. That process measures by the time since
the start of one machine, or by wall times less an hour. A *fixed-term* hold is never renewed.

Correctness does not depend on leases. A reader whose lease is over finds its parts, or the same
rows in newer parts, or gets an error.
Source: persist, "Capabilities" and "Leasing"; design page 4, "Holds".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tidelog.core.frontier import Frontier, join
from tidelog.errors import HoldExpired, HoldFenced, UsageError
from tidelog.machine.language import Decision
from tidelog.persist.states.claim import CLOCKS_APART_US
from tidelog.persist.states.state import Diff, Hold, Holds, Sighting, State, least_since

HISTORY_HOLD: Final = "history"  # The hold of each shard that sets how much history it keeps.


def decide_hold(
    state: State,
    name: str,
    since: Frontier | None,
    *,
    schema: bytes = b"",
    token: int | None = None,
) -> Decision[Diff, Frontier]:
    """Decide to place a critical hold (default: at the shard's since), or return the existing one.

    An existing hold does not move; a greater token takes it over.

    Raises:
        UsageError: the time is before since, or past upper. HoldFenced: the hold has a newer owner.
    """
    found = state.holds.get(name)
    if found is not None:
        check_token(name, found, token)
        if token is None or token == found.token:
            return Decision(found.frontier)
        taken = msgspec.structs.replace(found, token=token)
        return Decision(found.frontier, Diff(holds={name: taken}))
    start = state.since_frontier if since is None else since
    _check_start(state, start)
    hold = Hold(time_of(start), token=token or 0)
    founding = None if state.schema or not schema else schema
    return Decision(start, Diff(schema=founding, holds={name: hold}))


def decide_advance_hold(
    state: State, name: str, since: Frontier, *, token: int | None = None
) -> Decision[Diff, Frontier]:
    """Decide to advance a hold; the shard's since follows if this hold was the earliest.

    The result is the shard's since. A hold that is already further does not move; a greater token
    takes it over.

    Raises:
        UsageError: no such hold, or ``since`` is past upper. HoldFenced: the hold has a newer
            owner.
    """
    found = find_hold(state.holds, name, token=token)
    check_not_past(since, state.upper_frontier)
    owner = found.token if token is None else token
    if since <= found.frontier and owner == found.token:
        return Decision(state.since_frontier)
    reached = time_of(join([since, found.frontier]))
    return _moved(state, name, msgspec.structs.replace(found, since=reached, token=owner))


def decide_move_back(
    state: State, name: str, since: Frontier, *, token: int | None = None
) -> Decision[Diff, Frontier]:
    """Decide to move a hold back, at most to the shard's since; the result is the hold's since.

    The hold never advances, and the shard's since does not change.

    Raises:
        UsageError: no such hold. HoldFenced: the hold has a newer owner.
    """
    found = find_hold(state.holds, name, token=token)
    reached = join([since, state.since_frontier])
    if found.frontier <= reached:
        return Decision(found.frontier)
    moved = msgspec.structs.replace(found, since=time_of(reached))
    return Decision(reached, Diff(holds={name: moved}))


def decide_drop_hold(state: State, name: str, *, token: int | None = None) -> Decision[Diff, bool]:
    """Decide to drop a hold; the result is whether it existed. The shard's since stays.

    Raises:
        HoldFenced: the hold has a newer owner.
    """
    found = state.holds.get(name)
    if found is None:
        return Decision(False)
    check_token(name, found, token)
    # Since follows at the next move of another hold. Without any hold it would become empty here,
    # and no time would be readable.
    return Decision(True, Diff(released=(name,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A request for a leased or fixed-term hold.

    Units: microseconds; ``at_us`` is wall time. ``seqno`` is that of a state read before, or None
        if the hold keeps times and no objects.
    """

    name: str
    lease_us: int
    at_us: int
    seqno: int | None
    since: Frontier | None = None
    is_fixed: bool = False
    purpose: str = ""


def decide_lease(state: State, lease: Lease) -> Decision[Diff, Frontier]:
    """Decide to place a leased hold; the result is the hold's since.

    A shard whose since is empty has nothing to hold: the result is then the empty frontier.

    Raises:
        UsageError: the time is before since, or past upper.
    """
    if lease.name in state.holds:
        # The name is unique, so an earlier try of this call placed the hold.
        return Decision(state.holds[lease.name].frontier)
    if state.since is None:
        return Decision(Frontier.empty())
    start = state.since_frontier if lease.since is None else lease.since
    _check_start(state, start)
    hold = Hold(
        time_of(start),
        lease_us=lease.lease_us,
        is_fixed=lease.is_fixed,
        at_us=lease.at_us,
        seqno=lease.seqno,
        purpose=lease.purpose,
    )
    return Decision(start, Diff(holds={lease.name: hold}))


def decide_keep(
    state: State, lease: Lease, *, moved_to: Frontier | None = None
) -> Decision[Diff, Frontier]:
    """Decide to place a leased hold, or to renew and move an existing one; the result is its since.

    Only a hold that does not exist starts at the lease's ``since``. So any process that knows the
    name keeps the hold, and no process moves it by accident.

    Raises:
        UsageError: a new hold would be before since, or the hold past upper.
    """
    found = state.holds.get(lease.name)
    if found is None:
        return decide_lease(state, lease)
    start = found.frontier if moved_to is None else join([moved_to, found.frontier])
    check_not_past(start, state.upper_frontier)
    renewed = msgspec.structs.replace(
        found,
        since=time_of(start),
        beat=found.beat + 1,
        at_us=lease.at_us,
        lease_us=lease.lease_us,
    )
    return Decision(start, _moved(state, lease.name, renewed).diff)


def decide_renew(
    state: State, name: str, *, at_us: int, seqno: int | None, since: Frontier | None = None
) -> Decision[Diff, Frontier]:
    """Decide to renew a lease, and to advance its hold if ``since`` is given.

    The result is the shard's since.

    Raises:
        HoldExpired: the lease is over. UsageError: the hold has a fixed term, or ``since`` is past
            upper.
    """
    found = find_lease(state.holds, name)
    if found.is_fixed:
        raise UsageError("a hold of a fixed term cannot be renewed: create another hold", hold=name)
    start = found.frontier if since is None else since
    check_not_past(start, state.upper_frontier)
    reached = found.seqno if seqno is None else max(seqno, found.seqno or 0)
    renewed = msgspec.structs.replace(
        found,
        since=time_of(join([start, found.frontier])),
        beat=found.beat + 1,
        at_us=at_us,
        seqno=reached,
    )
    return _moved(state, name, renewed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The time at which a collector looks at leases, by its own clock.

    Units: ``at_us`` is wall time, ``monotonic_us`` the time since ``boot``; see `Clock.boot`.
    """

    at_us: int
    monotonic_us: int = 0
    boot: str = ""

    def since_us(self, last: Sighting) -> int:
        """Return the least time for which a recorded beat has not changed.

        Without a common boot, this allows wall times to differ by `CLOCKS_APART_US`.
        """
        if self.boot and self.boot == last.boot:
            return max(0, self.monotonic_us - last.monotonic_us)
        return max(0, self.at_us - last.at_us - CLOCKS_APART_US)


def decide_watch(
    state: State, watch: Watch, *, overdue: Collection[tuple[str, int]] = ()
) -> Decision[Diff, int]:
    """Decide to end the leases that are over, and to record new beats of the other leases.

    A lease is over if its owner has not renewed it for its whole length since a collector recorded
    its beat. It is also over if ``overdue`` contains its name and current beat. The result is the
    number of leases that end.
    """
    over, seen = [], {}
    for name, hold in state.holds.items():
        if not hold.lease_us:
            continue
        last = state.sightings.get(name)
        known = last if last is not None and last.beat == hold.beat else None
        # After a renewal the beat is another one: the lease stays, and its length begins again.
        is_over = known is not None and watch.since_us(known) >= hold.lease_us
        if is_over or (name, hold.beat) in overdue:
            over.append(name)
        elif known is None:
            since = {"boot": watch.boot, "monotonic_us": watch.monotonic_us}
            seen[name] = Sighting(hold.beat, watch.at_us, since if watch.boot else {})
    if not over and not seen:
        return Decision(0)
    return Decision(len(over), Diff(released=tuple(over), sightings=seen))


def moved_by_append(
    state: State, wanted: Mapping[str, Frontier], upper: Frontier
) -> tuple[dict[str, Hold], tuple[int | None] | None]:
    """Return the holds that an append up to ``upper`` moves or creates, and the since after it.

    Raises:
        UsageError: a hold would be past upper. HoldFenced: a hold has an owner with a token.
    """
    moved = {}
    for name, since in wanted.items():
        check_not_past(since, upper)
        found = state.holds.get(name)
        if found is None:
            moved[name] = Hold(time_of(since))
            continue
        check_token(name, found, None)
        if found.frontier < since:
            moved[name] = msgspec.structs.replace(found, since=time_of(since))
    return moved, since_after(state, moved) if moved else None


def since_after(state: State, moved: Mapping[str, Hold]) -> tuple[int | None] | None:
    """Return the since after holds moved, as a tuple of one; None if it does not change."""
    least = least_since({**state.holds, **moved})
    return (time_of(least),) if state.since_frontier < least else None


def check_not_past(since: Frontier, upper: Frontier) -> None:
    """Refuse a since that is past upper; the empty frontier is allowed and gives up all times.

    Raises:
        UsageError: ``since`` is past upper.
    """
    if not since.is_empty and not since <= upper:
        raise UsageError(
            "a hold must not be past the shard's upper: choose an earlier time",
            asked=since,
            upper=upper,
        )


def _check_start(state: State, start: Frontier) -> None:
    if not state.since_frontier <= start:
        raise UsageError(
            "a hold must not be before the shard's since: choose a later time",
            asked=start,
            since=state.since_frontier,
        )
    check_not_past(start, state.upper_frontier)


def _moved(state: State, name: str, hold: Hold) -> Decision[Diff, Frontier]:
    moved = {name: hold}
    after = since_after(state, moved)
    since = state.since_frontier if after is None else Frontier.of(after[0])
    return Decision(since, Diff(holds=moved, since=after))


def time_of(frontier: Frontier) -> int | None:
    """Return the time of a frontier; None for the empty frontier."""
    return None if frontier.is_empty else frontier.time


def find_hold(holds: Holds, name: str, *, token: int | None) -> Hold:
    """Return a hold if the owner of ``token`` (None: no token) may move it.

    Raises:
        UsageError: no such hold. HoldFenced: the hold has a newer owner.
    """
    hold = holds.get(name)
    if hold is None:
        raise UsageError("no hold has that name: create it first", hold=name)
    check_token(name, hold, token)
    return hold


def check_token(name: str, hold: Hold, token: int | None) -> None:
    """Refuse an owner whom a newer owner has fenced.

    Raises:
        HoldFenced: the hold has a greater token; the error has that token and the hold's since.
    """
    if hold.token and (token or 0) < hold.token:
        raise HoldFenced(
            "the hold has a newer owner: stop, or take the hold over with a greater token",
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
