"""The slots in which an opener of `sim.models.slot_opener` puts fences by the protocol. Pure.

One look at all slots gives the first that seems free. The first ``alpha`` slots after it get
fences, and a few *signs* get fences far ahead of them. If the round created no fence, the next
round continues after it, with signs twice as far apart. If the lowest fence created is a sign, the
slots below it that may be free get fences too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sim.models.slot_world import Slots, WritingAgent

LOSSES: Final = 1  # Lost answers of one opener; each may cost another round.
STRIDES_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class BurstOpener:
    """An opener that sent fences into an epoch, and waits for the answers of ``waiting``.

    ``base``: the first slot of the round. ``stride``: the distance of its signs. ``ours``: slots
    whose put succeeded. ``taken``: occupied slots; after a lost answer and a retry, the occupant
    may be the opener's own fence. ``losses``: how many more answers can be lost.
    """

    epoch: int
    base: int
    stride: int
    waiting: frozenset[int]
    ours: frozenset[int]
    taken: frozenset[int]
    known: Slots
    held: WritingAgent | None
    losses: int


def begin(
    epoch: int, first: int, *, alpha: int, signs: int, known: Slots, held: WritingAgent | None
) -> BurstOpener:
    nothing: frozenset[int] = frozenset()
    empty = BurstOpener(epoch, first, alpha, nothing, nothing, nothing, known, held, LOSSES)
    return replace(empty, waiting=_round(empty, alpha=alpha, signs=signs))


def hear(burst: BurstOpener, answers: Mapping[int, bool]) -> BurstOpener:
    """Record for each slot whether the opener's own fence was created there."""
    ours = frozenset(slot for slot, is_ours in answers.items() if is_ours)
    return replace(
        burst,
        waiting=burst.waiting.difference(answers),
        ours=burst.ours | ours,
        taken=burst.taken.union(answers) - ours,
    )


def lose(burst: BurstOpener, slot: int) -> BurstOpener:
    """Record that the put of the opener's own slot was answered as taken."""
    ours, taken = burst.ours - {slot}, burst.taken | {slot}
    return replace(burst, ours=ours, taken=taken, losses=burst.losses - 1)


def go_on(burst: BurstOpener, *, alpha: int, signs: int) -> BurstOpener:
    """Return the next fences to send after all answers; ``waiting`` is empty if there are none."""
    if burst.ours:
        return replace(burst, waiting=_below_lowest(burst, alpha=alpha))
    last, stride = max(burst.taken), 2 * burst.stride
    if stride > STRIDES_MAX * alpha:
        return burst  # It looks again and restarts; the model knows enough about many rounds.
    following = replace(burst, base=last + 1, stride=stride, taken=frozenset((last,)))
    return replace(following, waiting=_round(following, alpha=alpha, signs=signs))


def _round(burst: BurstOpener, *, alpha: int, signs: int) -> frozenset[int]:
    dense = range(burst.base, burst.base + alpha)
    return frozenset(dense).union(dense[-1] + burst.stride * each for each in range(1, signs + 1))


def _below_lowest(burst: BurstOpener, *, alpha: int) -> frozenset[int]:
    """Return the slots below the opener's lowest fence that may be free.

    A taken sign proves that the writer has the answers of all but alpha slots below it.
    """
    lowest = min(burst.ours)
    passed = max((slot for slot in burst.taken if slot < lowest), default=burst.base - 1)
    first = max(burst.base, passed - alpha + 1)
    return frozenset(range(first, lowest)) - burst.taken
