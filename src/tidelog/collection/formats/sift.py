"""Sifting: what is parsed at once, but for the few things that do not parse. Pure.

A parser of many things says at most that one of them is bad. Guesses, which are cheap, say which
ones may be; what remains is parsed at once, and each doubtful one alone. A guess decides nothing:
what is bad is what does not parse alone, so that no thing's fate depends on its neighbours. Where
no guess helps, the things are halved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from tidelog.collection.formats.places import Bools, Int64s

T = TypeVar("T")
Guess = Callable[[Int64s], Bools]


@dataclass(slots=True)
class Sieve(Generic[T]):
    """What parsed, with the rows that it stands for, and the rows that do not parse alone.

    ``parse`` returns None if one of the rows is bad; ``guesses`` say which rows may be, the
    cheapest guess first. ``asked`` is one that is asked before anything is parsed, since it is as
    expensive to fail as to parse: the one that helped with the last block, if any. ``is_sure``
    returns True only for rows that surely do not parse alone: where many are bad, to parse each
    of them takes most of the time.
    """

    parse: Callable[[Int64s], T | None]
    guesses: Sequence[Guess]
    asked: Guess | None = None
    is_sure: Guess | None = None
    kept: list[tuple[Int64s, T]] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)

    def take(self, rows: Int64s) -> None:
        """Parse some rows."""
        first, self.asked = self.asked, None
        if first is None and self._try(rows):
            return
        others = [guess for guess in self.guesses if guess is not first]
        for guess in others if first is None else [first, *others]:
            doubted = guess(rows)
            if doubted.any():
                self.asked = guess
                self._take_doubtful(rows[doubted])
                rows = rows[~doubted]
            if (doubted.any() or guess is first) and self._try(rows):
                return
        self._halve(rows)

    def ordered(self) -> tuple[list[T], Int64s, Int64s | None]:
        """Return what was kept, the rows that it stands for, and how to put these in order.

        The last is None where they are in order.
        """
        nothing = np.zeros(0, dtype=np.int64)
        rows = np.concatenate([nothing, *(rows for rows, _ in self.kept)])
        found = [one for _, one in self.kept]
        if np.all(rows[1:] > rows[:-1]):
            return found, rows, None
        return found, rows, np.argsort(rows)

    def _try(self, rows: Int64s) -> bool:
        if not len(rows):
            return True
        found = self.parse(rows)
        if found is not None:
            self.kept.append((rows, found))
        return found is not None

    def _take_doubtful(self, rows: Int64s) -> None:
        """Parse rows of which most are bad, or none is."""
        if len(rows) > 1 and self._try(rows):
            return
        if self.is_sure is not None:
            sure = self.is_sure(rows)
            self.bad.extend(rows[sure].tolist())
            rows = rows[~sure]
            if sure.any() and self._try(rows):
                return
        for place in range(len(rows)):
            if not self._try(rows[place : place + 1]):
                self.bad.append(int(rows[place]))

    def _halve(self, rows: Int64s) -> None:
        """Parse rows that do not parse together."""
        waiting = [rows]
        while waiting:
            some = waiting.pop()
            if len(some) == 1:
                self.bad.append(int(some[0]))
                continue
            middle = len(some) // 2
            waiting.extend(half for half in (some[middle:], some[:middle]) if not self._try(half))
