"""The model: the expected contents of the collection and `_errors`, and the waiting files.

It gets the files by name, the units of their texts, and the visible part of each. It decodes
nothing, and knows no ticks, bindings, ranges, dialects or types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from messy.records import Row, Unit
from messy.settings import Settings


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file in its current state, under the name by which it is ingested.

    Shape: ``visible`` is the number of visible bytes of its text. ``is_torn`` is true if half of a
    compressed member follows them, ``is_stuck`` if nothing new can be taken. Offsets of Parquet are
    row numbers.
    """

    id: int
    path: str
    units: Sequence[Unit]
    visible: int
    is_torn: bool = False
    is_stuck: bool = False
    by_rows: bool = False


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A row, its step, and its place."""

    row: Row
    step: int
    path: str
    offset: int


@dataclass(frozen=True, slots=True)
class BadRow:
    """A bad row. Its offset may be reported anywhere in ``[offset, offset + slack]``."""

    path: str
    offset: int
    slack: int
    note: str


@dataclass(slots=True)
class Model:
    """The rows ingested so far."""

    settings: Settings
    rows: list[TakenRow] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    may_wait: set[str] = field(default_factory=set)
    done: Counter[int] = field(default_factory=Counter)

    def take(self, files: Sequence[SeenFile], *, step: int, final: bool) -> None:
        """Take all rows that can be taken from the files, in order of name."""
        self.waiting, self.may_wait = set(), set()
        for file in sorted(files, key=lambda one: one.path):
            if file.is_stuck:
                self.waiting.add(file.path)
            else:
                self._take_file(file, step, final=final)

    def _take_file(self, file: SeenFile, step: int, *, final: bool) -> None:
        offset = 0
        if file.is_torn:
            self.waiting.add(file.path)
        for number, unit in enumerate(file.units):
            there = file.visible - offset
            if there <= 0:
                break
            if number >= self.done[file.id]:
                ended = unit.ends is not None and there >= unit.ends
                if unit.opens and not (final and not file.is_torn):
                    self.waiting.add(file.path)
                    break
                if not ended and not self._is_whole(unit, there, file, final=final):
                    break
                self.done[file.id] = number + 1
                # Half of a record that no writer completes is a bad row.
                half = not ended and there < unit.body
                self._keep(file, unit, number if file.by_rows else offset, step, half=half)
            elif there < len(unit.text):
                self.may_wait.add(file.path)  # Half of a line end is visible.
            offset += len(unit.text)

    def _is_whole(self, unit: Unit, there: int, file: SeenFile, *, final: bool) -> bool:
        """Return True if a last unit is taken although it has no end."""
        if not file.is_torn and (final or (unit.alone and there >= unit.body)):
            return True
        is_nothing = unit.row is None and not unit.is_bad and not unit.is_header
        (self.may_wait if is_nothing else self.waiting).add(file.path)
        return False

    def _keep(self, file: SeenFile, unit: Unit, offset: int, step: int, *, half: bool) -> None:
        if unit.is_bad or (half and unit.row is not None):
            self.bad.append(BadRow(file.path, offset, unit.slack, unit.note))
        elif unit.row is not None:
            self.rows.append(TakenRow(unit.row, step, file.path, offset))

    def contents(self) -> Counter[str]:
        """Return all rows of a source without a key."""
        return Counter(shown(one.row) for one in self.rows)

    def newest(self) -> dict[str, set[str]]:
        """Return the possible rows of each key. Mostly there is one; the empty text means none."""
        by_key: dict[str, list[TakenRow]] = {}
        for one in self.rows:
            key = shown({name: one.row[name] for name in self.settings.keys})
            by_key.setdefault(key, []).append(one)
        return {key: {self._left(one) for one in self._last(rows)} for key, rows in by_key.items()}

    def _last(self, rows: Sequence[TakenRow]) -> Sequence[TakenRow]:
        if self.settings.time is not None:
            most = max(one.row["at"] for one in rows)
            rows = [one for one in rows if one.row["at"] == most]
        last = max(rows, key=lambda one: (one.step, one.path, one.offset))
        if not self.settings.is_held:
            return [last]
        # Rows of one time that were held back count together, in order of address; or one was late.
        return [last, max(rows, key=lambda one: (one.path, one.offset))]

    def _left(self, one: TakenRow) -> str:
        return "" if self.settings.deletes and one.row["gone"] is True else shown(one.row)


def shown(row: Row) -> str:
    """Return a row as text for comparison, including nulls."""
    return repr(sorted(row.items()))
