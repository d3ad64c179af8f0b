"""The world: a random folder of files, and its changes between runs."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from messy.layout import draw_units
from messy.model import Model, SeenFile
from messy.packing import GARBAGE, Text, damage, pack, show
from messy.parquet_values import draw_parquet
from messy.records import Rows
from messy.settings import Settings

STEMS: Final = (
    *("a", "b", "z", "A", "0", "a b", "ä", "x=1", "100%", "%41", "it's", 'q"q', "a,b", "[1]"),
    *("~", "-x", "a;b", "#1", "日本", "e\u0301", "a..b", "a.csv", "*", "?", "\\", "{x}", "a+b"),
    *("sub/a", "sub/b c", "day=2024-01-01/a", "sub/deep/er/a", "x" * 100),
)
HIDDEN: Final = (".{}", "_{}", "{}.tmp", "{}.part", "{}._COPYING_", "{}.crdownload", ".dir/{}")
DATED_NS: Final = 1_700_000_000_000_000_000


@dataclass(slots=True)
class File:
    """A file: its name in the folder or outside of it, and symbolic links to it.

    Shape: a ``pinned`` file stays at its place, and a ``frozen`` file does not grow. ``raw`` is its
    content if that is not a text of the source.
    """

    id: int
    name: str
    text: Text
    raw: bytes | None = None
    links: list[str] = field(default_factory=list)
    outside: bool = False
    pinned: bool = False
    frozen: bool = False
    dated_ns: int = DATED_NS

    @property
    def data(self) -> bytes:
        return self.text.data if self.raw is None else self.raw[: self.text.shown]


@dataclass(slots=True)
class World:
    """A folder, and the knowledge of everything that was ever in it."""

    dice: random.Random
    settings: Settings
    folder: Path
    rows: Rows = field(init=False)
    files: list[File] = field(default_factory=list)
    drawn: Counter[str] = field(default_factory=Counter)
    _ids: int = 0
    _used: set[str] = field(default_factory=set)
    _now_ns: int = DATED_NS

    def __post_init__(self) -> None:
        self.rows = Rows(self.dice, self.settings)
        self.folder.mkdir(parents=True)
        if self.dice.random() < 0.05:
            (self.folder / f"dir.{self.settings.extension}").mkdir()
        if self.dice.random() < 0.05:
            (self.folder / f"nothing.{self.settings.extension}").symlink_to("nowhere")

    # Changes -----------------------------------------------------------------------------------

    def change(self, model: Model, *, is_first: bool, is_last: bool, final: bool) -> None:
        """Change the folder: files appear and grow, and sometimes one moves or disappears."""
        for file in list(self.files):
            self._go_on(file, is_last=is_last, final=final)
        for _ in range(self.dice.choice([1, 2, 3, 4] if is_first else [0, 1, 1, 2])):
            self._create(final=final, is_last=is_last)
        may_link = not (self.settings.is_held or self.settings.is_versioned)
        if may_link and not is_first and self.dice.random() < 0.6:
            deed = self.dice.choice([self._rename, self._delete, self._copy, self._touch])
            deed(model)
        elif may_link and self.dice.random() < 0.15:
            self._link()
        if final or self.settings.is_versioned:
            self._freeze()

    def _create(self, *, final: bool, is_last: bool) -> None:
        dice, settings = self.dice, self.settings
        suffix = dice.choice(settings.suffixes)
        file = File(self._ids, self._name(suffix), Text((), suffix))
        self._ids += 1
        if dice.random() < 0.06 and (suffix or settings.format == "parquet" or settings.csv.header):
            self.drawn["garbage"] += 1
            file.raw = dice.choice(GARBAGE)
            file.text.shown, file.pinned = len(file.raw), True
        else:
            self._fill(file)
            self._show(file, final=final, whole=dice.random() < 0.65)
        if not (settings.is_held or settings.is_versioned) and dice.random() < 0.06:
            self.drawn["outside"] += 1
            file.outside = file.pinned = True
            file.links.append(self._name(suffix))
            file.name = f"{file.id}"
        self.files.append(file)
        self._write(file)
        for link in file.links:
            self._symlink(link, file)

    def _fill(self, file: File) -> None:
        size = self.dice.choice([0, 1, 2, 3, 4, 6, 10])
        if self.settings.format == "parquet":
            units, file.raw = draw_parquet(self.rows, size=size)
            file.text.units = units
        else:
            file.text.units = draw_units(self.rows, size=size)
            pack(file.text, self.dice)
        self.drawn.update(unit.note for unit in file.text.units if unit.note)

    def _show(self, file: File, *, final: bool, whole: bool) -> None:
        whole |= self.settings.is_versioned
        if file.raw is not None:
            size = len(file.raw)
            file.text.shown = size if whole else self.dice.randrange(file.text.shown, size)
            return
        show(file.text, self.dice, may_tear=not final, whole=whole)
        if file.text.suffix and self.dice.random() < 0.06:
            self.drawn["damaged"] += 1
            damage(file.text, self.dice)

    def _go_on(self, file: File, *, is_last: bool, final: bool) -> None:
        """Let a file grow, repair it, or give it a name that the source reads."""
        dice = self.dice
        if file.frozen:
            return
        if dice.random() < 0.6 and _is_hidden(file.name) and not file.outside and not file.links:
            self._move(file, self._name(file.text.suffix, hide=0))
        if self._is_garbage(file):
            if dice.random() < 0.5:
                self.drawn["garbage mended"] += 1
                file.raw, file.pinned = None, file.outside
                self._fill(file)
                self._show(file, final=final, whole=True)
                self._write(file)
        elif file.text.damage is not None:
            if dice.random() < 0.6:
                self.drawn["damage mended"] += 1
                file.text.damage = None
                self._write(file)
        elif not self._is_whole(file) and (final or dice.random() < 0.8):
            self.drawn["grown"] += 1
            # `final` promises that all writers have ended; half a header would break that
            # promise.
            whole = is_last or final or dice.random() < 0.5
            self._show(file, final=final, whole=whole)
            self._write(file)

    def _rename(self, model: Model) -> None:
        files = [f for f in self.files if not f.pinned and model.done[f.id]]
        if files:
            self.drawn["renamed"] += 1
            file = self.dice.choice(files)
            self._move(file, self._name(file.text.suffix))

    def _delete(self, model: Model) -> None:
        files = [f for f in self.files if not f.pinned]
        if files:
            self.drawn["deleted"] += 1
            file = self.dice.choice(files)
            self._path(file).unlink()
            self.files.remove(file)

    def _copy(self, model: Model) -> None:
        files = [f for f in self.files if not f.outside and not self._is_garbage(f)]
        if files:
            self.drawn["copied"] += 1
            file = self.dice.choice(files)
            twin = deepcopy(file)
            # If the original is gone, a copy that grew would count as the original under another
            # name.
            file.pinned = twin.pinned = True
            twin.id, twin.name, twin.links = self._ids, self._name(file.text.suffix), []
            self._ids += 1
            self.files.append(twin)
            self._write(twin)

    def _touch(self, model: Model) -> None:
        if self.files:
            self.drawn["touched"] += 1
            file = self.dice.choice(self.files)
            file.pinned = True  # With another date it is not recognised under another name.
            self._write(file)

    def _link(self) -> None:
        if self.files:
            self.drawn["linked"] += 1
            file = self.dice.choice(self.files)
            file.pinned = True
            file.links.append(self._name(file.text.suffix, hide=0))
            self._symlink(file.links[-1], file)

    def _freeze(self) -> None:
        """Stop the growth of files with half of a record taken."""
        for file in self.files:
            text, at = file.text, 0
            if file.raw is not None:
                continue
            visible, is_torn = text.visible
            for unit in text.units:
                inside = at < visible < at + unit.body
                file.frozen |= inside and not is_torn and not text.is_damaged
                at += len(unit.text)

    # Files on disk -----------------------------------------------------------------------------

    def _name(self, suffix: str, *, hide: float = 0.1) -> str:
        while True:
            stem = self.dice.choice(STEMS)
            if self.settings.pattern == "*":
                stem = stem.replace("/", " ")
            name = f"{stem}.{self.settings.extension}{suffix}"
            if self.dice.random() < hide:
                above, _, last = name.rpartition("/")
                name = f"{above}/"[: bool(above) * 99] + self.dice.choice(HIDDEN).format(last)
            if name not in self._used:
                self._used.add(name)
                return name

    def _path(self, file: File) -> Path:
        return (self.folder.parent / "outside" if file.outside else self.folder) / file.name

    def _write(self, file: File) -> None:
        path = self._path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        self._now_ns += 1_000_000_007
        file.dated_ns = self._now_ns
        os.utime(path, ns=(self._now_ns, self._now_ns))

    def _move(self, file: File, name: str) -> None:
        before = self._path(file)
        file.name = name
        after = self._path(file)
        after.parent.mkdir(parents=True, exist_ok=True)
        before.rename(after)

    def _symlink(self, link: str, file: File) -> None:
        path = self.folder / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self._path(file))

    # Result ------------------------------------------------------------------------------------

    def seen(self) -> Sequence[SeenFile]:
        """Return the files that can be ingested, as the model needs them."""
        found = []
        for file in self.files:
            own = [] if file.outside or _is_hidden(file.name) else [file.name]
            names = own or sorted(link for link in file.links if not _is_hidden(link))
            if not names or not file.data:
                continue
            by_rows = self.settings.format == "parquet" and not self._is_garbage(file)
            visible, is_torn = (len(file.text.units), False) if by_rows else file.text.visible
            found.append(
                SeenFile(
                    id=file.id,
                    path=names[0],
                    units=file.text.units,
                    visible=visible,
                    is_torn=is_torn,
                    is_stuck=self._is_garbage(file)
                    or (by_rows and not self._is_whole(file))
                    or file.text.is_damaged,
                    by_rows=by_rows,
                )
            )
        return found

    def _is_garbage(self, file: File) -> bool:
        return file.raw is not None and file.raw in GARBAGE

    def _is_whole(self, file: File) -> bool:
        return file.text.is_whole if file.raw is None else file.text.shown >= len(file.raw)


def _is_hidden(name: str) -> bool:
    """Return True if the source ignores a name: see docs/guides/follow-a-folder.md."""
    ends = tuple(form[2:] for form in HIDDEN if form.startswith("{}"))
    return any(part[:1] in "._" for part in name.split("/")) or name.endswith(ends)
