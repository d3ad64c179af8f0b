"""Bursts of fences: into which slots an opener puts them until one stands before the writer. Pure.

That the epoch ends where its first fence stands, in slot order, is safe wherever fences lie. What
is decided here is that it ends soon. A writer has at most alpha puts under way, from the first slot
on of which it has no answer; while a burst travels it may fill as many again, and more if puts are
quicker than looks. So the first alpha slots that seem free are fenced, which ends the epoch of a
writer that is dead or slow, and besides a few *signs* far ahead of them. The lowest sign that
stands is one that the writer cannot pass; the slots below it that may be free are fenced then. If
none stands, the writer is past all of them, and the next signs are put twice as far apart.

Invariants: each round sends at most alpha + 3 fences, or fills at most a stride and alpha - 1
slots; the distance that is covered doubles with each round that misses.
Source: wal3-draft, "Fencing"; docs/decisions/0010.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SIGNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What an opener knows of the slots of an epoch that it is ending.

    ``base`` is the first slot of the round under way, ``stride`` the distance of its signs. A slot
    is ``ours`` if a fence of ours was put into it, ``taken`` if something else was there.
    """

    alpha: int
    base: int
    stride: int
    ours: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()

    @property
    def lowest(self) -> int | None:
        """Return the lowest slot in which a fence of ours stands."""
        return min(self.ours, default=None)

    @property
    def signs(self) -> range:
        """Return the slots of the signs of this round."""
        first = self.base + self.alpha - 1 + self.stride
        return range(first, first + SIGNS * self.stride, self.stride)

    @property
    def reach(self) -> int:
        """Return the first slot past all fences that were sent, or are to be."""
        return max([self.signs[-1], *self.ours, *self.taken]) + 1


def begin(first: int, *, alpha: int) -> Burst:
    """Return the burst at the first slot that was seen to be free."""
    return Burst(alpha=alpha, base=first, stride=alpha)


def slots_to_fence(burst: Burst) -> list[int]:
    """Return the slots to fence now; none if one of ours stands, and nothing below it is free.

    Every slot of the last round has been answered.
    """
    known = burst.ours | burst.taken
    if (lowest := burst.lowest) is None:
        return [*range(burst.base, burst.base + burst.alpha), *burst.signs]
    # Where a sign was taken the writer has come by: it had the answers of all but alpha slots.
    passed = max((slot for slot in burst.taken if slot < lowest), default=burst.base - 1)
    first = max(burst.base, passed - burst.alpha + 1)
    return [slot for slot in range(first, lowest) if slot not in known]


def note_answers(burst: Burst, *, ours: frozenset[int], taken: frozenset[int]) -> Burst:
    """Note what became of fences; a round in which none of ours stands leads to one farther on."""
    noted = replace(burst, ours=burst.ours | ours, taken=burst.taken | taken)
    if noted.ours:
        return noted
    return replace(noted, base=max(noted.taken) + 1, stride=2 * noted.stride)
