"""Bursts of fences: the slots in which an opener puts fences to overtake a writer. Pure.

The first fence in slot order ends the epoch wherever fences are, so any choice of slots is safe.
This module decides only that the epoch ends soon.

A writer has at most alpha puts in flight, counted from its first unanswered slot. While a burst
travels, the writer may fill as many slots again, and more if its puts are faster than the opener's
looks. So each round fences two groups of slots. The first alpha slots that seem free end the epoch
of a dead or slow writer. A few *signs* far ahead catch a fast one: it cannot pass the lowest sign
that is stored. The next round then fences the slots below that sign that may be free. If no fence
is stored, the writer is past all of them, and the next round doubles the distance between signs.

Invariants: a round sends at most alpha + 3 fences, or else fills at most a stride and alpha - 1
slots; the distance covered doubles with each round that misses.
Source: wal3-draft, "Fencing"; docs/decisions/0010.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

SIGNS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """The slots of an ending epoch, as far as its opener knows them.

    ``base`` is the first slot of the current round, ``stride`` the distance between its signs.
    ``ours`` has the slots in which this opener's fence is stored, ``taken`` those with another
    object.
    """

    alpha: int
    base: int
    stride: int
    ours: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()

    @property
    def lowest(self) -> int | None:
        """Return the lowest slot in which this opener's fence is stored."""
        return min(self.ours, default=None)

    @property
    def signs(self) -> range:
        """Return the slots of this round's signs."""
        first = self.base + self.alpha - 1 + self.stride
        return range(first, first + SIGNS * self.stride, self.stride)

    @property
    def reach(self) -> int:
        """Return the first slot past all fences that were sent or will be sent."""
        return max([self.signs[-1], *self.ours, *self.taken]) + 1


def begin(first: int, *, alpha: int) -> Burst:
    """Return the burst that starts at ``first``, the first slot that seems free."""
    return Burst(alpha=alpha, base=first, stride=alpha)


def slots_to_fence(burst: Burst) -> list[int]:
    """Return the slots to fence next, or an empty list if the epoch is certainly ended.

    The epoch is ended if one of this opener's fences is stored and no lower slot can be free. Every
    slot of the last round must have been answered.
    """
    known = burst.ours | burst.taken
    if (lowest := burst.lowest) is None:
        return [*range(burst.base, burst.base + burst.alpha), *burst.signs]
    # If the writer filled a sign, all but alpha of the slots up to it were answered before.
    passed = max((slot for slot in burst.taken if slot < lowest), default=burst.base - 1)
    first = max(burst.base, passed - burst.alpha + 1)
    return [slot for slot in range(first, lowest) if slot not in known]


def note_answers(burst: Burst, *, ours: frozenset[int], taken: frozenset[int]) -> Burst:
    """Return the burst after a round's answers; start a round further on if no fence is stored."""
    noted = replace(burst, ours=burst.ours | ours, taken=burst.taken | taken)
    if noted.ours:
        return noted
    return replace(noted, base=max(noted.taken) + 1, stride=2 * noted.stride)
