"""Who is about to keep what was read or put, and who is changing it. Does no I/O.

Invariant: nobody may keep what he learned before, or while, the key was deleted or replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Visit:
    """One who knows a key's bytes, and may keep them unless the key was changed meanwhile."""

    def __init__(self, *, may_keep: bool) -> None:
        self.may_keep = may_keep


class Changer:
    """One who changes keys; ``alone`` if nobody else changed one of them meanwhile."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone


class Visits:
    """Who is about to keep what, and who is changing it."""

    def __init__(self) -> None:
        self._visits: dict[str, set[Visit]] = {}
        self._changes: dict[str, set[Changer]] = {}

    def changing(self, key: str) -> bool:
        return key in self._changes

    @contextmanager
    def begin(self, key: str) -> Iterator[Visit]:
        """Learn a key's bytes; what was learned may be kept if ``may_keep`` still says so."""
        visit = Visit(may_keep=not self.changing(key))
        self._visits.setdefault(key, set()).add(visit)
        try:
            yield visit
        finally:
            # A thread goes on when its caller is cancelled, and may be about to keep something.
            visit.may_keep = False
            _take_out(self._visits, key, visit)

    @contextmanager
    def change(self, keys: Sequence[str]) -> Iterator[Changer]:
        """Change keys: those who visit them now, or come before it is over, keep nothing."""
        others = [change for key in keys for change in self._changes.get(key, ())]
        change = Changer(alone=not others)
        for other in others:
            other.alone = False
        for key in set(keys):
            self._changes.setdefault(key, set()).add(change)
            for visit in self._visits.get(key, ()):
                visit.may_keep = False
        try:
            yield change
        finally:
            for key in set(keys):
                _take_out(self._changes, key, change)


def _take_out(sets: dict[str, set[T]], key: str, one: T) -> None:
    sets[key].discard(one)
    if not sets[key]:
        del sets[key]
