"""Handovers, as the state of the first shard of a rendition records them. Pure.

Every read of a collection at a time ``t`` needs the state of this shard with its upper past ``t``.
The mark is accepted only while its time is at or past the upper. So no reader can have read the
shard at that time or later, and every later reader finds the mark in the state that it reads.

One state decides between a handover to a rendition and its drop, because both are recorded there.
It also decides between the drop of the shard's own rendition and a new hold.
Source: storage, "Rendition metadata"; design page 6, "Record of a handover".
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.core.frontier import Frontier
from tidelog.errors import HandoverRefused
from tidelog.machine.language import Decision
from tidelog.persist.states.state import Diff, Mark, State
from tidelog.persist.states.transition import check_not_dropped, check_unregistered, decide_drop


def decide_mark(state: State, mark: Mark) -> Decision[Diff, Mark]:
    """Decide that readers leave a shard at a time. A repeated call changes nothing.

    Raises:
        HandoverRefused: readers may have read the shard at that time, the state has another mark,
            or the successor was barred.
        ShardRegistered: the shard is registered, so its own upper lags behind the readers.
        UsageError: the shard was dropped.
    """
    found = state.mark
    if found is not None:
        if (found.at, found.successor) == (mark.at, mark.successor):
            return Decision(found)
        raise HandoverRefused(
            "another handover of the collection was first: see 'tidelog rendition history', then "
            "begin again",
            at=found.at,
        )
    check_not_dropped(state)
    check_unregistered(state)
    if mark.successor in state.barred:
        raise HandoverRefused("the rendition was dropped: hand over to another one")
    if not state.upper_frontier <= Frontier.at(mark.at):
        raise HandoverRefused(
            "readers may have read the collection at that time: pass a time that is not complete",
            at=mark.at,
            upper=state.upper_frontier,
        )
    return Decision(mark, Diff(mark=mark))


def decide_bar(state: State, successor: str) -> Decision[Diff, Mark | None]:
    """Decide that no mark may name a rendition; the result is the mark that exists already."""
    if state.mark is not None or successor in state.barred or state.is_dropped:
        return Decision(state.mark)
    return Decision(None, Diff(barred=successor))


def decide_retire(state: State, is_own: Callable[[str], bool], name: str) -> Decision[Diff, int]:
    """Decide to drop the first shard of a rendition, unless a hold keeps times that readers need.

    ``is_own`` is True for the names of holds that end with the rendition. ``name`` is the one
    under which 'tidelog hold list' finds the holds.

    Raises:
        HandoverRefused: a hold is there; the message names it.
    """
    check_retirable(state, is_own, name)
    return decide_drop(state)


def check_retirable(state: State, is_own: Callable[[str], bool], name: str) -> None:
    """Check that no hold keeps times of a rendition that readers need; see `decide_retire`.

    Raises:
        HandoverRefused: a hold is there; the message names it.
    """
    at = None if state.mark is None else Frontier.at(state.mark.at)
    needed = [
        hold_name
        for hold_name, hold in state.holds.items()
        if not is_own(hold_name) and (at is None or hold.frontier < at)
    ]
    if needed:
        raise HandoverRefused(
            "holds keep times at which readers read the rendition: list them with "
            f"'tidelog hold list {name}'. Then move or drop them, or ingest the sources that "
            "placed them",
            holds=", ".join(sorted(needed)),
        )
