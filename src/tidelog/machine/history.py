"""What of a machine's past is kept: rollups, the records after them, what vanished since. Pure.

A rollup and the records before it go once ``seqno_since`` has reached the rollup. Objects that
changes made vanish stay a while longer: somebody may still read by a state that named them, and is
not made to say so by a request for each read. Who is slower than that finds a part gone, reads the
newest state, and begins again by that; the clocks that measure the while decide nothing else.
Source: persist, "Garbage Collection"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import msgspec

from tidelog.machine.record import Gone, Record, RolledUp, Rollup


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the past at some seqno.

    Shape: ``rollups`` are those that are kept, ``gone`` what vanished and was not deleted that one
        knows of; both oldest first. Objects that vanished up to ``erased`` are deleted.
        ``changed`` is the seqno of the newest record with a change.
    """

    rollups: tuple[Rollup, ...] = ()
    floor: int = 0
    erased: int = 0
    gone: tuple[Gone, ...] = ()
    changed: int = 0

    @property
    def rolled_up(self) -> int:
        """The seqno up to which the newest rollup has all changes."""
        return self.rollups[-1].seqno if self.rollups else 0

    @property
    def is_settled(self) -> bool:
        """Return True if the newest rollup has all changes, and nothing before it is kept."""
        return self.changed <= self.rolled_up == self.floor

    @property
    def newest(self) -> Rollup | None:
        """The newest rollup that a record names."""
        return self.rollups[-1] if self.rollups else None


def begin_history(rollup: Rollup, found: RolledUp) -> History:
    """Return what is known once a rollup was read."""
    rollups = (*found.rollups, rollup)
    return History(
        rollups=rollups,
        floor=found.floor,
        erased=found.erased,
        gone=found.gone,
        changed=rollup.seqno,
    )


def follow(history: History, seqno: int, record: Record, vanished: tuple[str, ...]) -> History:
    """Return what is known after one record more."""
    rollups, gone = history.rollups, history.gone
    newest = history.newest
    if record.rollup is not None and (newest is None or newest.seqno < record.rollup.seqno):
        rollups = (*rollups, record.rollup)
    if vanished:
        gone = (*gone, Gone(seqno, record.at_us, vanished))
    if record.floor > history.floor:
        rollups = tuple(one for one in rollups if one.seqno >= record.floor)
    if record.erased > history.erased:
        gone = tuple(one for one in gone if one.seqno > record.erased)
    return History(
        rollups=rollups,
        floor=max(record.floor, history.floor),
        erased=max(record.erased, history.erased),
        gone=gone,
        changed=seqno if record.diffs else history.changed,
    )


@dataclass(frozen=True, slots=True)
class Collectible:
    """What may go: objects at once; once a record says so, what lies before the floor.

    What vanished up to ``erased`` is gone then.
    """

    floor: int
    raises_floor: bool
    erased: int
    objects: tuple[str, ...]
    rollups: tuple[str, ...]


def plan_collection(
    history: History, seqno_since: int | None, *, before_us: int, eager: bool = False
) -> Collectible | None:
    """Return what may be deleted; None if nothing is due.

    What vanished at or after ``before_us`` stays. Objects alone are a reason for the eager only:
    others delete many at once, when there is a new rollup.
    """
    reached = [one for one in history.rollups if seqno_since is None or one.seqno <= seqno_since]
    floor = max(history.floor, reached[-1].seqno if reached else 0)
    due = _due(history, seqno_since, before_us)
    if floor == history.floor and not (due and eager):
        return None
    return Collectible(
        floor=floor,
        raises_floor=floor > history.floor,
        erased=due[-1].seqno if due else history.erased,
        objects=tuple(path for one in due for path in one.paths),
        rollups=tuple(one.path for one in reached if one.seqno < floor),
    )


def _due(history: History, seqno_since: int | None, before_us: int) -> list[Gone]:
    """Return what vanished long enough ago: nothing before what did not."""
    # What came before something did so at that time or earlier, whatever its writer's clock said.
    times = [*accumulate((one.at_us for one in reversed(history.gone)), min)][::-1]
    found = []
    for one, at_us in zip(history.gone, times, strict=True):
        if at_us >= before_us or (seqno_since is not None and one.seqno > seqno_since):
            break
        found.append(one)
    return found
