"""Visits all reachable states of a model, breadth first, and stops at the first violation.

It knows no protocol. The trail to a violation is the shortest. It checks only that nothing wrong
happens, not that something happens in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

S = TypeVar("S", bound=Hashable)

STATES_MAX: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Exploration(Generic[S]):
    """The result of a visit.

    ``states`` is the number of distinct states, ``steps`` of the steps between them. ``is_whole``:
    all states were visited. ``violation``: the sentence of a failed check after the steps of
    ``trail``, each with the state it led to; None if no check failed.
    """

    states: int
    steps: int
    is_whole: bool
    violation: str | None = None
    trail: tuple[tuple[str, S], ...] = ()

    def render(self) -> str:
        """Return the result as a line, then a line for each step of the trail."""
        held = self.violation or ("holds" if self.is_whole else "held so far")
        labels = [f"  {number}. {label}" for number, (label, _) in enumerate(self.trail, start=1)]
        return "\n".join([f"{held}: states={self.states} steps={self.steps}", *labels])


def explore(
    initial: S,
    successors: Callable[[S], Iterable[tuple[str, S]]],
    *,
    check: Callable[[S], str | None],
    check_step: Callable[[S, S], str | None] = lambda _before, _after: None,
    states_max: int = STATES_MAX,
) -> Exploration[S]:
    """Follow every step from ``initial``; check every state, and every step between two.

    A step to a known state is checked too: a record lost on this path may never have existed on the
    other path. ``states_max``: stop at this number of states.
    """
    came_from: dict[S, tuple[S, str] | None] = {initial: None}
    steps, level = 0, [initial]
    while level:
        following: list[S] = []
        for before in level:
            for label, after in successors(before):
                steps += 1
                violation = check_step(before, after)
                if violation is None and after not in came_from:
                    if len(came_from) == states_max:
                        return Exploration(len(came_from), steps, is_whole=False)
                    came_from[after] = (before, label)
                    following.append(after)
                    violation = check(after)
                if violation is not None:
                    trail = (*_trail(came_from, before), (label, after))
                    return Exploration(len(came_from), steps, False, violation, trail)
        level = following
    return Exploration(len(came_from), steps, is_whole=True)


def _trail(came_from: dict[S, tuple[S, str] | None], state: S) -> list[tuple[str, S]]:
    trail = []
    while (origin := came_from[state]) is not None:
        trail.append((origin[1], state))
        state = origin[0]
    return trail[::-1]
