"""Isolation of bad rows at a low cost: parse all rows at once, except the few bad ones. Pure.

A parser of many rows reports at most that one of them is bad. Cheap guesses select the suspect
rows. The other rows are parsed at once, and each suspect is parsed alone. A guess decides nothing:
a row is bad only if it does not parse alone. So the result for a row never depends on its
neighbours. If no guess helps, the rows are halved until each bad one is alone. The same bisection
does work without the rows that make a library fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from tidelog.collection.formats.places import Bools, Int64s
from tidelog.errors import TidelogError

T = TypeVar("T")
Guess = Callable[[Int64s], Bools]


@dataclass(slots=True)
class BadRowSearch(Generic[T]):
    """The isolation of bad rows: the parsed rows so far, and the bad ones.

    Shape: ``parse`` returns None if one of the rows is bad. ``guesses`` return masks of suspect
        rows, the cheapest guess first. ``first_guess`` is the guess that helped with the last
        block, if any. It runs before the first parse: a failed parse costs as much as a good one.
        ``is_sure`` returns True only for rows that surely do not parse alone: if many rows are bad,
        parsing each alone takes most of the time. ``parsed`` has the results, each with its rows.
    """

    parse: Callable[[Int64s], T | None]
    guesses: Sequence[Guess]
    first_guess: Guess | None = None
    is_sure: Guess | None = None
    parsed: list[tuple[Int64s, T]] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)

    def take(self, rows: Int64s) -> None:
        """Parse some rows."""
        first, self.first_guess = self.first_guess, None
        if first is None and self._try(rows):
            return
        others = [guess for guess in self.guesses if guess is not first]
        for guess in others if first is None else [first, *others]:
            suspect = guess(rows)
            if suspect.any():
                self.first_guess = guess
                self._take_suspects(rows[suspect])
                rows = rows[~suspect]
            if (suspect.any() or guess is first) and self._try(rows):
                return
        self._halve(rows)

    def ordered(self) -> tuple[list[T], Int64s, Int64s | None]:
        """Return the results, their row numbers, and the permutation that sorts the row numbers.

        The permutation is None if they are sorted.
        """
        nothing = np.zeros(0, dtype=np.int64)
        rows = np.concatenate([nothing, *(rows for rows, _ in self.parsed)])
        found = [one for _, one in self.parsed]
        if np.all(rows[1:] > rows[:-1]):
            return found, rows, None
        return found, rows, np.argsort(rows)

    def _try(self, rows: Int64s) -> bool:
        if not len(rows):
            return True
        found = self.parse(rows)
        if found is not None:
            self.parsed.append((rows, found))
        return found is not None

    def _take_suspects(self, rows: Int64s) -> None:
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
        bad = bisect(len(rows), lambda start, limit: self._try(rows[start:limit]))
        self.bad.extend(rows[bad].tolist())


def do_without_bad_rows(
    count: int, work: Callable[[int, int], T]
) -> tuple[list[T], dict[int, str]]:
    """Do work on ``count`` rows; if it fails, split the rows in halves and do each half.

    Return the results in order, and the name of the error for each row that fails alone. An error
    of tidelog, or a lack of memory, is not the fault of a row, and is raised.
    """
    done: list[T] = []
    names: dict[int, str] = {}

    def attempt(start: int, limit: int) -> bool:
        try:
            done.append(work(start, limit))
        except (TidelogError, MemoryError):
            raise
        except Exception as error:
            if start == limit:
                raise  # The work fails even without rows.
            names[start] = type(error).__name__
            return False
        return True

    bad = [] if attempt(0, count) else bisect(count, attempt)
    return done, {row: names[row] for row in bad}


def bisect(count: int, attempt: Callable[[int, int], bool]) -> list[int]:
    """Return the rows that fail alone, of ``count`` rows that fail together.

    ``attempt`` tries the rows ``[start, limit)`` and returns False if they fail. The ranges are
    tried in the order of their rows, so the results of those that succeed are in order.
    """
    bad: list[int] = []
    waiting = [(0, count, True)]
    while waiting:
        start, limit, has_failed = waiting.pop()
        if not has_failed and attempt(start, limit):
            continue
        if limit - start == 1:
            bad.append(start)
            continue
        middle = (start + limit) // 2
        waiting += [(middle, limit, False), (start, middle, False)]
    return bad
