"""Files that change at random, and a plain list of everything written into them."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kit.packing import packed

NAMES = 12
HEADER = b"k,n,at,gone\n"
BAD = {"json": b'{"k": 1, "n": "x\n', "csv": b"1,x,y,z\n"}

Row = tuple[int, int, int, bool]  # k, n, at, gone


@dataclass(slots=True)
class Files:
    """A folder of files, compressed by ``suffix``; ``rows`` and ``bad`` are the model."""

    folder: Path
    dice: random.Random
    format: str
    suffix: str
    rows: list[Row] = field(default_factory=list)
    bad: int = 0
    is_torn: bool = False
    _of: dict[str, tuple[list[Row], int]] = field(default_factory=dict)
    _rest: dict[str, bytes] = field(default_factory=dict)
    _names: dict[str, set[str]] = field(default_factory=dict)

    def write(self) -> None:
        """Append rows to a file or a new one, perhaps with a bad line or only half of a record."""
        dice, here = self.dice, self._here()
        name = dice.choice(here) if here and dice.random() < 0.7 else self._any_name()
        path = self.folder / name
        is_new = not path.exists()
        if is_new and name in self._names:
            return
        self._names.setdefault(name, {name})
        rows = [self._row() for _ in range(dice.randrange(1, 9))]
        bad = dice.random() < 0.15
        self._add(name, rows, bad=int(bad))
        data = (HEADER if is_new and self.format == "csv" else b"") + self._text(rows)
        if bad:
            data += BAD[self.format]
        if self.suffix:
            cuts = (dice.randrange(1, len(data)),) if dice.random() < 0.3 else (len(data),)
            data = packed(data, self.suffix, cuts)
        data = self._rest.pop(name, b"") + data
        if self.is_torn and dice.random() < 0.3:
            cut = dice.randrange(1, len(data))
            data, self._rest[name] = data[:cut], data[cut:]
        with path.open("ab") as sink:
            sink.write(data)

    def shuffle(self, *, copies: bool) -> None:
        """Rename some files, also back to earlier names, or copy them."""
        dice = self.dice
        for _ in range(dice.randrange(3)):
            here = self._here()
            if not here:
                return
            old, new = dice.choice(here), self._any_name()
            known = self._names.get(new, {new})
            if (self.folder / new).exists() or (new in self._names and old not in known):
                continue
            if not copies or dice.random() < 0.75:
                self._rename(old, new)
            elif old not in self._rest and new not in self._names:
                shutil.copy2(self.folder / old, self.folder / new)
                self._names[new] = {new}
                rows, bad = self._of[old]
                self._add(new, rows, bad=bad)

    def finish(self) -> None:
        """Write the second halves of incomplete records."""
        for name, rest in self._rest.items():
            with (self.folder / name).open("ab") as sink:
                sink.write(rest)
        self._rest.clear()

    def expected(self, *, keyed: bool, timed: bool, deletes: bool) -> Counter[Row] | None:
        """Return the expected contents, or None if they depend on which file was taken first."""
        if not keyed:
            return Counter(self.rows)
        if not timed:
            return None
        times = Counter((row[0], row[2]) for row in self.rows)
        newest = {row[0]: row for row in sorted(self.rows, key=lambda row: row[2])}
        return Counter(
            row
            for row in newest.values()
            if times[row[0], row[2]] == 1 and not (deletes and row[3])
        )

    def is_tied(self, key: int) -> bool:
        """Return True if two rows of a key have its greatest time."""
        times = [row[2] for row in self.rows if row[0] == key]
        return times.count(max(times)) > 1

    def _here(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def _any_name(self) -> str:
        return f"{self.dice.randrange(NAMES)}.{self.format}{self.suffix}"

    def _row(self) -> Row:
        number = len(self.rows) + self.dice.randrange(1_000_000)
        drift = (
            self.dice.randrange(3_000)
            if self.dice.random() < 0.9
            else -self.dice.randrange(1, 60_000)
        )
        at = 100_000_000 + len(self.rows) * 300 + drift
        return self.dice.randrange(11), number, at, self.dice.random() < 0.2

    def _add(self, name: str, rows: list[Row], *, bad: int) -> None:
        before, bad_before = self._of.get(name, ([], 0))
        self._of[name] = [*before, *rows], bad_before + bad
        self.rows += rows
        self.bad += bad

    def _rename(self, old: str, new: str) -> None:
        (self.folder / old).rename(self.folder / new)
        self._of[new] = self._of.pop(old)
        if old in self._rest:
            self._rest[new] = self._rest.pop(old)
        names = self._names[old] | {new}
        for name in names:
            self._names[name] = names

    def _text(self, rows: list[Row]) -> bytes:
        if self.format == "csv":
            return "".join(
                f"{k},{n},{at},{str(gone).lower()}\n" for k, n, at, gone in rows
            ).encode()
        lines = (json.dumps(dict(zip(("k", "n", "at", "gone"), r, strict=True))) for r in rows)
        return "".join(line + "\n" for line in lines).encode()
