"""What lies under a shard, and what of it is needed: every object is told apart, by pure code.

An object may lie there that no state names, as whoever wrote it died, or lost a race, before it was
named. It can be told from one that is still to be named by its *write epoch*, which stands in its
path: a commit brings parts of the state's epoch and of the one before, and no older ones. So what
is older than that, and unnamed, is dead for ever. A rollup is dead once one of a later seqno, or of
the same, is named.
Source: persist, "Garbage Collection"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.machine.history import History
from tidelog.machine.record import rollup_seqno
from tidelog.persist.format.part import epoch_of
from tidelog.persist.states.state import State
from tidelog.store.prices import storage_dollars_a_month


class ObjectUse(enum.Enum):
    """What an object of a shard is to it."""

    LIVE = "live"  # The newest state, or a newcomer, reads it.
    GONE = "gone"  # A merge has replaced it, and its time to be deleted has not come.
    YOUNG = "young"  # Nothing names it yet.
    DEAD = "dead"  # Nothing names it, and nothing ever will.
    OTHER = "other"  # It is none of the shard's own: what is kept beside it.


@dataclass(frozen=True, slots=True)
class ShardUsage:
    """The objects of a shard, in number and bytes, by what they are to it.

    Shape: ``objects`` and ``size_bytes`` have each `ObjectUse`; ``dead`` are keys. ``inline_bytes``
        ride in the state, and are no objects. ``young_parts`` are those of the young that a write
        epoch makes dead; rollups are so once a later one is named.
    """

    objects: Mapping[ObjectUse, int]
    size_bytes: Mapping[ObjectUse, int]
    dead: tuple[str, ...]
    inline_bytes: int = 0
    young_parts: int = 0

    @property
    def stored_bytes(self) -> int:
        """Return how many bytes lie there, and are paid for, whatever they are to the shard."""
        return sum(self.size_bytes.values())

    @property
    def dollars_a_month(self) -> float:
        """Return what it costs to keep them."""
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
    """Tell what each object of a shard is to it; ``listed`` are keys and their sizes in bytes.

    The state must have been read after the listing: what was named meanwhile is in it.
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
