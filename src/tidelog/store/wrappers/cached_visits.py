"""The readers that may cache an object, and the writers that are changing it. Does no I/O.

Invariant: bytes that a caller got before or while a key was deleted or replaced are not cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Visit:
    """A caller that has a key's bytes, and may cache them unless the key changes."""

    def __init__(self, *, may_keep: bool) -> None:
        self.may_keep = may_keep


class Changer:
    """A caller that changes keys; ``alone`` is False if another caller changes one of them too."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone


class Visits:
    """The current visits and changes, by key."""

    def __init__(self) -> None:
        self._visits: dict[str, set[Visit]] = {}
        self._changes: dict[str, set[Changer]] = {}

    def changing(self, key: str) -> bool:
        return key in self._changes

    @contextmanager
    def begin(self, key: str) -> Iterator[Visit]:
        """Begin to read or put a key; the bytes may be cached while ``may_keep`` is True."""
        visit = Visit(may_keep=not self.changing(key))
        self._visits.setdefault(key, set()).add(visit)
        try:
            yield visit
        finally:
            # A thread continues when its caller is cancelled, and may be about to cache bytes.
            visit.may_keep = False
            _take_out(self._visits, key, visit)

    @contextmanager
    def change(self, keys: Sequence[str]) -> Iterator[Changer]:
        """Change keys; concurrent visits of these keys cache nothing."""
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
