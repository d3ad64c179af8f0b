"""The objects of a shard by their use: live, replaced, or dead. Pure.

An object may exist that no state names: its writer died or lost a race before the commit. The
*write epoch* in its path distinguishes it from an object that a writer will still commit. A commit
may bring parts of the state's epoch and of the epoch before, but no older ones. An unnamed part of
an older epoch is therefore dead. A rollup is dead once a rollup of the same or a later seqno is
named.
Source: persist, "Garbage Collection"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.machine.record import History, rollup_seqno
from tidelog.persist.format.part import epoch_of
from tidelog.persist.states.state import State
from tidelog.store.prices import storage_dollars_a_month


class ObjectUse(enum.Enum):
    """The use of an object in its shard."""

    LIVE = "live"  # Readers need it: the newest state or the history names it.
    GONE = "gone"  # A merge has replaced it, and it is not due for deletion yet.
    YOUNG = "young"  # No state names it yet.
    DEAD = "dead"  # No state names it, and none can.
    OTHER = "other"  # It is not an object of the shard itself.


@dataclass(frozen=True, slots=True)
class ShardUsage:
    """The number and bytes of a shard's objects, by use.

    Shape: ``objects`` and ``size_bytes`` have an entry for each `ObjectUse`; ``dead`` are keys.
        ``inline_bytes`` are stored in the state, not in objects. ``young_parts`` counts the young
        objects that become dead by a higher write epoch. Young rollups become dead when a later
        rollup is named.
    """

    objects: Mapping[ObjectUse, int]
    size_bytes: Mapping[ObjectUse, int]
    dead: tuple[str, ...]
    inline_bytes: int = 0
    young_parts: int = 0

    @property
    def stored_bytes(self) -> int:
        """The bytes of all stored objects, whatever their use."""
        return sum(self.size_bytes.values())

    @property
    def dollars_a_month(self) -> float:
        """The approximate monthly cost of storing these objects."""
        return storage_dollars_a_month(self.stored_bytes)

    def __add__(self, other: ShardUsage) -> ShardUsage:
        return ShardUsage(
            {one: self.objects[one] + other.objects[one] for one in ObjectUse},
            {one: self.size_bytes[one] + other.size_bytes[one] for one in ObjectUse},
            self.dead + other.dead,
            self.inline_bytes + other.inline_bytes,
            self.young_parts + other.young_parts,
        )


NOTHING: Final = ShardUsage(dict.fromkeys(ObjectUse, 0), dict.fromkeys(ObjectUse, 0), ())


def tell_apart(listed: Iterable[tuple[str, int]], state: State, history: History) -> ShardUsage:
    """Determine the use of each object of a shard; ``listed`` are keys and sizes in bytes.

    The state must be read after the listing, so that it includes every object named in between.
    """
    live = {part.path for batch in state.batches for part in batch.parts}
    live.update(rollup.path for rollup in history.rollups)
    gone = {path for one in history.gone for path in one.paths}
    newest = history.newest
    rolled_up = -1 if newest is None else newest.seqno
    objects, sizes = dict.fromkeys(ObjectUse, 0), dict.fromkeys(ObjectUse, 0)
    dead: list[str] = []
    young_parts = 0
    for key, size in listed:
        if key in live:
            use = ObjectUse.LIVE
        elif key in gone:
            use = ObjectUse.GONE
        else:
            use = _unnamed(key, epoch=state.write_epoch, rolled_up=rolled_up)
        objects[use] += 1
        sizes[use] += size
        if use is ObjectUse.DEAD:
            dead.append(key)
        young_parts += use is ObjectUse.YOUNG and epoch_of(key) is not None
    return ShardUsage(objects, sizes, tuple(dead), state.totals.inline_bytes, young_parts)


def _unnamed(key: str, *, epoch: int, rolled_up: int) -> ObjectUse:
    own = epoch_of(key)
    if own is not None:
        return ObjectUse.DEAD if own < epoch - 1 else ObjectUse.YOUNG
    seqno = rollup_seqno(key)
    if seqno >= 0:
        return ObjectUse.DEAD if seqno <= rolled_up else ObjectUse.YOUNG
    return ObjectUse.OTHER
