"""The kept past of a machine: rollups, the records after them, and vanished objects. Pure.

A rollup and the records before it are deleted once ``seqno_since`` has reached a later rollup. An
object that a change took out of the state is kept for some time, because a reader may still use a
state that names it. A reader does not report each read, so only time protects it. A reader that is
slower finds an object missing, reads the newest state and starts again. Clocks therefore affect
only how often readers start again, not whether they are correct.

Source: persist, "Garbage Collection"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import msgspec

from tidelog.machine.record import Gone, Record, RolledUp, Rollup


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The known past of a machine at one seqno.

    Shape: ``rollups`` are the kept rollups, ``gone`` the vanished objects that are not yet deleted;
        both are ordered from oldest to newest. Objects that vanished up to ``erased`` are deleted.
        ``changed`` is the seqno of the newest record with a change.
    """

    rollups: tuple[Rollup, ...] = ()
    floor: int = 0
    erased: int = 0
    gone: tuple[Gone, ...] = ()
    changed: int = 0

    @property
    def rolled_up(self) -> int:
        """The seqno of the newest rollup, which includes all changes up to it; 0 without one."""
        return self.rollups[-1].seqno if self.rollups else 0

    @property
    def is_settled(self) -> bool:
        """Return True if the newest rollup includes all changes and no older past is kept."""
        return self.changed <= self.rolled_up == self.floor

    @property
    def newest(self) -> Rollup | None:
        """The newest rollup that a record names."""
        return self.rollups[-1] if self.rollups else None


def begin_history(rollup: Rollup, found: RolledUp) -> History:
    """Return the history after reading a rollup."""
    rollups = (*found.rollups, rollup)
    return History(
        rollups=rollups,
        floor=found.floor,
        erased=found.erased,
        gone=found.gone,
        changed=rollup.seqno,
    )


def follow(history: History, seqno: int, record: Record, vanished: tuple[str, ...]) -> History:
    """Return the history after one more record."""
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
    """The parts of a machine's past to delete.

    Objects can be deleted immediately. Records and rollups below ``floor`` can be deleted only
    after a record states the new floor. That record also states ``erased``: objects that vanished
    up to it are deleted.
    """

    floor: int
    raises_floor: bool
    erased: int
    objects: tuple[str, ...]
    rollups: tuple[str, ...]


def plan_collection(
    history: History, seqno_since: int | None, *, before_us: int, eager: bool = False
) -> Collectible | None:
    """Return the parts of the past to delete; None if nothing is due.

    Objects that vanished at or after ``before_us`` are kept. Unless ``eager``, objects alone are no
    reason to collect: they wait until the floor rises, and are then deleted in one request.
    """
    reached = [one for one in history.rollups if seqno_since is None or one.seqno <= seqno_since]
    # Readers may need the states since `seqno_since`. The newest rollup at or before it, with the
    # records after that rollup, gives all of them.
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
    """Return the oldest entries that vanished long enough ago; stop at the first that did not."""
    # Entries are in the order of their records, so an entry is at least as old as each later one.
    # The minimum over the later entries corrects a writer's clock that ran ahead.
    times = [*accumulate((one.at_us for one in reversed(history.gone)), min)][::-1]
    found = []
    for one, at_us in zip(history.gone, times, strict=True):
        if at_us >= before_us or (seqno_since is not None and one.seqno > seqno_since):
            break
        found.append(one)
    return found
