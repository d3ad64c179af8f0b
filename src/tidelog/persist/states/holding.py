"""Decisions about holds: pure functions from a shard's state to what changes.

Since is the least that any hold needs. It never goes back; it moves when a hold is moved, and not
when one ends: else the end of several at once would take away what a newcomer is about to hold.
Source: persist, "Capabilities" and "Leasing"; design page 4, "Holds".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from tidelog.errors import UsageError
from tidelog.frontier import Frontier, join
from tidelog.machine.language import Decision
from tidelog.persist.states.hold import (
    CLOCKS_APART_US,
    Hold,
    check_token,
    find_hold,
    find_lease,
    least_since,
)
from tidelog.persist.states.state import Diff, Sighting, State


def decide_hold(
    state: State,
    name: str,
    since: Frontier | None,
    *,
    schema: bytes = b"",
    token: int | None = None,
) -> Decision[Diff, Frontier]:
    """Decide to place a critical hold (at the shard's since unless told), or to find the one there.

    One that stands stays where it is; a greater token takes it over.

    Raises:
        UsageError: the time asked for is given up, or past upper. HoldFenced: a newer owner has it.
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


def decide_downgrade(
    state: State, name: str, since: Frontier, *, token: int | None = None
) -> Decision[Diff, Frontier]:
    """Decide to move a hold up, and the shard's since with it if it was the last there.

    Gives the shard's since. A hold that is further already stays; a greater token takes it over.

    Raises:
        UsageError: there is no such hold, or ``since`` is past upper. HoldFenced: a newer owner has
            it.
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
    """Decide to move a hold back, as far as its shard can be read; return where the hold is.

    It never moves up. The shard's since stays.

    Raises:
        UsageError: there is no such hold. HoldFenced: a newer owner has it.
    """
    found = find_hold(state.holds, name, token=token)
    reached = join([since, state.since_frontier])
    if found.frontier <= reached:
        return Decision(found.frontier)
    moved = msgspec.structs.replace(found, since=time_of(reached))
    return Decision(reached, Diff(holds={name: moved}))


def decide_release(state: State, name: str, *, token: int | None = None) -> Decision[Diff, bool]:
    """Decide to drop a hold; gives whether there was one. Since moves with the next that moves.

    Raises:
        HoldFenced: a newer owner has it.
    """
    found = state.holds.get(name)
    if found is None:
        return Decision(False)
    check_token(name, found, token)
    return Decision(True, Diff(released=(name,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A leased or fixed-term hold that is asked for.

    Units: microseconds; ``at_us`` is wall time. ``seqno`` is that of a state read before.
    """

    name: str
    lease_us: int
    at_us: int
    seqno: int
    since: Frontier | None = None
    is_fixed: bool = False
    purpose: str = ""


def decide_lease(state: State, lease: Lease) -> Decision[Diff, Frontier]:
    """Decide to place a leased hold; gives where it stands.

    Of a shard that is no more nothing is held: gives the empty frontier.

    Raises:
        UsageError: the time asked for is given up, or past upper.
    """
    if lease.name in state.holds:
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


def decide_renew(
    state: State, name: str, *, at_us: int, seqno: int | None, since: Frontier | None = None
) -> Decision[Diff, Frontier]:
    """Decide to renew a lease, and to move what it holds up, if told; gives the shard's since.

    Raises:
        HoldExpired: it is over. UsageError: it is of a fixed term, or ``since`` is past upper.
    """
    found = find_lease(state.holds, name)
    if found.is_fixed:
        raise UsageError("a hold of a fixed term cannot be renewed: place another", hold=name)
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
    """The time of a collector's look at leases, by its own clock.

    Units: ``at_us`` is wall time, ``monotonic_us`` the time since ``boot``; see `Clock.boot`.
    """

    at_us: int
    monotonic_us: int = 0
    boot: str = ""

    def since_us(self, last: Sighting) -> int:
        """Return for how long, at least, a beat has been the same that was recorded before.

        Wall times of two machines differ by up to `CLOCKS_APART_US`.
        """
        if self.boot and self.boot == last.boot:
            return max(0, self.monotonic_us - last.monotonic_us)
        return max(0, self.at_us - last.at_us - CLOCKS_APART_US)


def decide_watch(
    state: State, watch: Watch, *, overdue: Collection[tuple[str, int]] = ()
) -> Decision[Diff, int]:
    """Decide to end the leases that are over, and to record the beats of the others.

    A lease is over if its owner has not renewed it for its whole length since a collector recorded
    its beat, or if ``overdue`` names it with the beat that it has. Return how many leases end.
    """
    over, seen = [], {}
    for name, hold in state.holds.items():
        if not hold.lease_us:
            continue
        last = state.sightings.get(name)
        known = last if last is not None and last.beat == hold.beat else None
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
    """Return the holds that an append up to ``upper`` moves, or makes, and the since after it.

    Raises:
        UsageError: one would be past upper. HoldFenced: one has an owner with a token.
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
    """Return the since that moved holds make, as a tuple of one; None if it stays."""
    least = least_since({**state.holds, **moved})
    return (time_of(least),) if state.since_frontier < least else None


def check_not_past(since: Frontier, upper: Frontier) -> None:
    """Refuse a since that is past upper; the empty one gives up all.

    Raises:
        UsageError: it is.
    """
    if not since.is_empty and not since <= upper:
        raise UsageError(
            "a hold cannot be past upper: what is not written yet could never be read",
            asked=since,
            upper=upper,
        )


def _check_start(state: State, start: Frontier) -> None:
    if not state.since_frontier <= start:
        raise UsageError(
            "a hold cannot reach back below since: ask for a later time",
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
    """Return a frontier's time; None for the empty one."""
    return None if frontier.is_empty else frontier.time
