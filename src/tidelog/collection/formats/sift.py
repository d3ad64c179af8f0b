"""Isolation of bad rows at a low cost: parse all rows at once, except the few bad ones. Pure.

A parser of many rows reports at most that one of them is bad. Cheap guesses select the suspect
rows. The other rows are parsed at once, and each suspect is parsed alone. A guess decides nothing:
a row is bad only if it does not parse alone. So the result for a row never depends on its
neighbours. If no guess helps, the rows are halved until each bad one is alone.
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
    """The isolation of bad rows: the parsed rows so far, and the bad ones.

    Shape: ``parse`` returns None if one of the rows is bad. ``guesses`` return masks of suspect
        rows, the cheapest guess first. ``asked`` is the guess that helped with the last block, if
        any. It runs before the first parse, since a failed parse costs as much as a good one.
        ``is_sure`` returns True only for rows that surely do not parse alone: if many rows are bad,
        parsing each alone takes most of the time. ``kept`` has the results, each with its rows.
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
        """Return the results, their row numbers, and the permutation that sorts the row numbers.

        The permutation is None if they are sorted.
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
        """Parse suspect rows: most of them are bad, or all are good."""
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
        """Parse rows that do not parse together, in ever smaller halves."""
        waiting = [rows]
        while waiting:
            some = waiting.pop()
            if len(some) == 1:
                self.bad.append(int(some[0]))
                continue
            middle = len(some) // 2
            waiting.extend(half for half in (some[middle:], some[:middle]) if not self._try(half))
