"""Frontiers: antichains over the times 0 to 2^63-1.

Times are totally ordered here, so an antichain is ``{t}`` or empty. The type still has the shape of
an antichain, so that its callers would work with partially ordered times.

Source: persist, "Jargon"; storage, "Renditions".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

from tidelog.errors import UsageError

TIME_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Frontier:
    """A frontier: ``at(t)`` has not passed the times ``>= t``; ``empty()`` has passed all times.

    An empty upper means finished. An empty since means that no time is readable any longer.
    """

    elements: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.elements) > 1:
            raise UsageError("a frontier must have at most one time", given=self.elements)
        # Plain ints can be stored; numpy's integers cannot.
        object.__setattr__(self, "elements", tuple(map(check_time, self.elements)))

    @classmethod
    def at(cls, time: int) -> Frontier:
        return cls((time,))

    @classmethod
    def empty(cls) -> Frontier:
        return cls(())

    @classmethod
    def of(cls, value: Frontier | int | None) -> Frontier:
        """Return the frontier for an argument: a time, a frontier, or None for the empty one."""
        if isinstance(value, Frontier):
            return value
        return cls.empty() if value is None else cls.at(value)

    @property
    def is_empty(self) -> bool:
        return not self.elements

    @property
    def time(self) -> int:
        """Return the one element.

        Raises:
            UsageError: the frontier is empty.
        """
        if not self.elements:
            raise UsageError("the empty frontier has no time: check is_empty first")
        return self.elements[0]

    def passed(self, time: int) -> bool:
        """Return True if ``time`` is before this frontier; before an upper, it is complete."""
        return not self.elements or time < self.elements[0]

    def __le__(self, other: Frontier) -> bool:
        if not other.elements:
            return True
        return bool(self.elements) and self.elements[0] <= other.elements[0]

    def __lt__(self, other: Frontier) -> bool:
        return self <= other and self != other

    def __str__(self) -> str:
        return "end" if self.is_empty else str(self.time)


def meet(frontiers: Iterable[Frontier]) -> Frontier:
    """Return the least frontier: all of them have reached it. For no frontiers, the empty one."""
    times = [f.elements[0] for f in frontiers if f.elements]
    return Frontier.at(min(times)) if times else Frontier.empty()


def join(frontiers: Iterable[Frontier]) -> Frontier:
    """Return the greatest frontier: at least one has reached it. For no frontiers, {0}."""
    known = list(frontiers)
    if any(f.is_empty for f in known):
        return Frontier.empty()
    return Frontier.at(max((f.elements[0] for f in known), default=0))


def check_time(time: int, what: str = "a time") -> int:
    """Return ``time`` as a plain int; errors name it ``what``.

    Raises:
        UsageError: it is not a whole number from 0 to 2^63-1.
    """
    given: object = time
    if type(given) is not int:
        if isinstance(given, bool) or not isinstance(given, Integral):
            kind = type(given).__name__
            raise UsageError(f"{what} must be a whole number (int) from 0 to 2^63-1", given=kind)
        time = int(given)
    if not 0 <= time <= TIME_MAX:
        raise UsageError(f"{what} must be a whole number from 0 to 2^63-1", given=time)
    return time
