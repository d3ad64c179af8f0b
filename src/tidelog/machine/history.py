"""What of a machine's past is kept: rollups, the records after them, what vanished since. Pure.

Nothing that a state names is deleted while somebody may hold that state: what changes made vanish
up to a rollup goes once ``seqno_since`` has reached that rollup, and then so do the records and
rollups before it.
Source: persist, "Garbage Collection"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tidelog.machine.record import Record, RolledUp, Rollup


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the past at some seqno.

    Shape: ``rollups`` are those that are kept, oldest first; ``vanished`` are the objects that
        records after ``known_from`` made vanish, with the seqno of the record, oldest first.
    """

    rollups: tuple[Rollup, ...] = ()
    floor: int = 0
    known_from: int = 0
    vanished: tuple[tuple[int, tuple[str, ...]], ...] = ()

    @property
    def newest(self) -> Rollup | None:
        """The newest rollup that a record names."""
        return self.rollups[-1] if self.rollups else None


def begin_history(rollup: Rollup, found: RolledUp) -> History:
    """Return what is known once a rollup was read."""
    rollups = (*found.rollups, rollup)
    return History(rollups=rollups, floor=found.floor, known_from=rollup.seqno)


def follow(history: History, seqno: int, record: Record, vanished: Sequence[str]) -> History:
    """Return what is known after one record more."""
    rollups, gone = history.rollups, history.vanished
    newest = history.newest
    if record.rollup is not None and (newest is None or newest.seqno < record.rollup.seqno):
        rollups = (*rollups, record.rollup)
    if vanished:
        gone = (*gone, (seqno, tuple(vanished)))
    if record.floor > history.floor:
        rollups = tuple(one for one in rollups if one.seqno >= record.floor)
        gone = tuple(one for one in gone if one[0] > record.floor)
    return History(
        rollups=rollups,
        floor=max(record.floor, history.floor),
        known_from=history.known_from,
        vanished=gone,
    )


@dataclass(frozen=True, slots=True)
class Collectible:
    """What may go: objects first; then, once a record says so, what lies before the floor."""

    floor: int
    objects: tuple[str, ...]
    rollups: tuple[str, ...]


def plan_collection(
    history: History, seqno_since: int | None, older: Sequence[tuple[int, Sequence[str]]] = ()
) -> Collectible | None:
    """Return what may be deleted; None if nothing may.

    ``older`` is what records from ``floor`` to ``known_from`` made vanish; see `missing_records`.
    """
    reached = [one for one in history.rollups if seqno_since is None or one.seqno <= seqno_since]
    if not reached or reached[-1].seqno <= history.floor:
        return None
    floor = reached[-1].seqno
    gone = (*older, *history.vanished)
    return Collectible(
        floor=floor,
        objects=tuple(path for at, paths in gone if history.floor < at <= floor for path in paths),
        rollups=tuple(one.path for one in reached[:-1]),
    )


def missing_records(history: History) -> tuple[int, int] | None:
    """Return the first and the last record that a collection has to read; None if it knows all."""
    if history.known_from <= history.floor:
        return None
    return history.floor + 1, history.known_from
