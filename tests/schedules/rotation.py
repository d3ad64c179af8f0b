"""Schedules of rotation: logs are renamed, copied, truncated and compressed during ingestion.

A plain list holds each line ever written. A tidy schedule must give exactly these lines. In an
untidy one, a line may be missing or repeated if a run reported a file that held it. The same is
true with times from the data, because a move is recorded only with the next rows.

In a busy schedule, tools also work during a run: before and after each request to the stores of the
location and of the logs. At such a request, the process may also be killed.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.sources import bind, run_once
from schedules.process import ProcessKilled, WatchedStore
from tidelog.collection.ingest.engine import Engine
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.source.files import FilesSource
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.location import Location, open_location
from tidelog.store.urls import open_store

LOG = "app.log"
FIRST_NS = 1_700_000_000_000_000_000
KNOWN_AGAIN = "so its rows are already ingested"  # This note excuses no repeated row.
MakeEngine = Callable[[Location], Engine]


@dataclass(slots=True)
class Logs:
    """A folder of logs: ``held`` are the lines of each file, ``written`` all lines ever.

    ``reported`` are the lines of reported files. In an untidy folder, tools lose dates, edit files,
    or are seen in the middle of their work.
    """

    folder: Path
    away: Path
    dice: random.Random
    format: str
    is_tidy: bool
    banner: bool
    is_timed: bool
    held: dict[str, list[int]] = field(default_factory=dict)
    outside: dict[str, list[int]] = field(default_factory=dict)
    written: Counter[int] = field(default_factory=Counter)
    reported: set[int] = field(default_factory=set)
    is_settled: bool = True
    is_copied: bool = False
    is_edited: bool = False  # Then nothing links a copy to the log.
    during: dict[str, set[int]] = field(default_factory=dict)
    _lines: int = 0
    _names: int = 0
    _changes: int = 0

    def act(self) -> None:
        """Do one action of a tool, or of a program that writes a log."""
        tidy: list[Callable[[], None]] = [
            *[self.append] * 4,
            self.append_anywhere,
            *[self.rotate] * 3,
            self.rotate_by_date,
            self.rename,
            self.copy_and_truncate,
            *[self.compress] * 2,
            self.decompress,
            self.copy,
            self.delete,
            self.move_away,
            self.move_back,
        ]
        untidy = [
            self.write_again_with_more,
            self.edit,
            self.begin_to_copy,
            self.compress_without_date,
            self.recompress,
        ]
        self.dice.choice(tidy if self.is_tidy else tidy + untidy)()

    def append(self) -> None:
        self._append(LOG)

    def append_anywhere(self) -> None:
        plain = [name for name in self.held if not name.endswith(".gz")]
        self._append(self.dice.choice(sorted(plain) or [LOG]))

    def rotate(self) -> None:
        """Rotate as logrotate does: each file gets the next number, and the log the number 1."""
        if LOG in self.held and not (self.is_tidy and self.is_copied):
            self._shift()
            self._rename(LOG, f"{LOG}.1")
            if self.dice.random() < 0.5:
                self._append(LOG)
            elif self.dice.random() < 0.5:
                (self.folder / LOG).touch()

    def rotate_by_date(self) -> None:
        if LOG in self.held and not (self.is_tidy and self.is_copied):
            self._rename(LOG, f"{LOG}-{20_260_000 + self._number()}")

    def rename(self) -> None:
        """Rename a file. For a copy, only its name shows the original log."""
        names = sorted(name for name in self.held if self.is_tidy or self._is_alone(name))
        if names and not (self.is_tidy and self.is_copied):
            name = self.dice.choice(names)
            end = ".gz" if name.endswith(".gz") else ""
            self._rename(name, f"other-{chr(97 + self._number() % 26)}x{self._names}.log{end}")

    def copy_and_truncate(self) -> None:
        if LOG in self.held and not self.is_edited and not (self.is_tidy and self.is_copied):
            self._shift()
            self.is_settled, self.is_copied = False, True
            shutil.copy(self.folder / LOG, self.folder / f"{LOG}.1")
            self._touch(f"{LOG}.1")
            os.truncate(self.folder / LOG, 0)
            self._touch(LOG)
            self.held[f"{LOG}.1"] = self.held.pop(LOG)
            if self.dice.random() < 0.5:
                self._append(LOG)

    def compress(self, *, keeps_date: bool = True) -> None:
        plain = sorted(name for name in self.held if not name.endswith(".gz"))
        if self.is_tidy and self.is_copied and LOG in plain:
            plain.remove(LOG)  # Without the log, nothing would identify its copy.
        if plain:
            name = self.dice.choice(plain)
            self._pack(name, f"{name}.gz", gzip.compress((self.folder / name).read_bytes()))
            if not keeps_date:
                self._touch(f"{name}.gz")

    def compress_without_date(self) -> None:
        self.compress(keeps_date=False)

    def decompress(self) -> None:
        packed = sorted(name for name in self.held if name.endswith(".gz"))
        if packed and (name := self.dice.choice(packed)).removesuffix(".gz") not in self._taken():
            text = gzip.decompress((self.folder / name).read_bytes())
            self._pack(name, name.removesuffix(".gz"), text)

    def recompress(self) -> None:
        packed = sorted(name for name in self.held if name.endswith(".gz"))
        if packed:
            path = self.folder / self.dice.choice(packed)
            text = gzip.decompress(path.read_bytes())
            path.write_bytes(gzip.compress(text, compresslevel=1, mtime=self._number()))
            self._touch(path.name)

    def write_again_with_more(self) -> None:
        """Replace a log by a longer copy, as rsync and editors do."""
        if LOG in self.held:
            temporary = self.folder / f".{LOG}.Xa3f"
            shutil.copy(self.folder / LOG, temporary)
            temporary.rename(self.folder / LOG)
            self._append(LOG)

    def copy(self) -> None:
        if self.held:
            name = self.dice.choice(sorted(self.held))
            end = ".gz" if name.endswith(".gz") else ""
            copy = f"copy-{chr(97 + self._number() % 26)}x{self._names}.log{end}"
            shutil.copy(self.folder / name, self.folder / copy)
            self._touch(copy)
            self.held[copy] = list(self.held[name])
            self.written.update(self.held[copy])
            self.is_settled = False

    def delete(self) -> None:
        """Delete a file whose lines are all in."""
        if self.held and self.is_settled:
            name = self.dice.choice(sorted(self.held))
            (self.folder / name).unlink()
            del self.held[name]

    def move_away(self) -> None:
        """Move a file out of the source.

        With times from the data, a move is recorded only with the next rows. The way of a file out
        and back may therefore be lost.
        """
        if self.held and not self.banner and not (self.is_tidy and self.is_timed):
            name = self.dice.choice(sorted(self.held))
            if name not in self.outside and self.is_settled:
                (self.folder / name).rename(self.away / name)
                self.outside[name] = self.held.pop(name)

    def move_back(self) -> None:
        if self.outside:
            name = self.dice.choice(sorted(self.outside))
            if name not in self._taken():
                (self.away / name).rename(self.folder / name)
                self.held[name] = self.outside.pop(name)
                self.is_settled = False

    def edit(self) -> None:
        """Rewrite a log in place without its first line, once all its lines are in."""
        if self.is_settled and len(self.held.get(LOG, ())) > 2:
            self.is_edited = True
            self.held[LOG] = self.held[LOG][1:]
            (self.folder / LOG).write_bytes(self._header() + self._text(self.held[LOG]))
            self._touch(LOG)
            self.is_settled = False

    def begin_to_copy(self) -> None:
        """Copy a log under a rotated name, without truncating it yet."""
        if LOG in self.held:
            self._shift()
            shutil.copy(self.folder / LOG, self.folder / f"{LOG}.1")
            self._touch(f"{LOG}.1")
            self.held[f"{LOG}.1"] = list(self.held[LOG])

    def finish(self) -> None:
        while self.outside:
            name = min(self.outside)
            shutil.move(self.away / name, self.folder / f"back-{name}")
            self.held[f"back-{name}"] = self.outside.pop(name)

    def note(self, names: set[str]) -> None:
        """Record the lines of the reported files."""
        for name in names:
            self.reported.update(self.held.get(name, ()), self.during.get(name, ()))

    def remember(self) -> None:
        """Record the lines under each name, for the notes of the current run."""
        for name, lines in self.held.items():
            self.during.setdefault(name, set()).update(lines)

    def _is_alone(self, name: str) -> bool:
        """Return True if no other file has a line of this one, except for the first line."""
        lines = {*self.held[name]} - {0}
        return all(other == name or not lines & {*held} for other, held in self.held.items())

    def _taken(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def _shift(self) -> None:
        for number in range(9, 0, -1):
            for end in ("", ".gz"):
                if (name := f"{LOG}.{number}{end}") in self.held:
                    self._rename(name, f"{LOG}.{number + 1}{end}")

    def _rename(self, old: str, new: str) -> None:
        if new in self._taken():
            return
        (self.folder / old).rename(self.folder / new)
        self.held[new] = self.held.pop(old)
        self.is_settled = False

    def _pack(self, old: str, new: str, data: bytes) -> None:
        if new in self._taken():
            return
        path = self.folder / old
        dated = path.stat().st_mtime_ns
        (self.folder / new).write_bytes(data)
        os.utime(self.folder / new, ns=(dated, dated))
        path.unlink()
        self.held[new] = self.held.pop(old)
        self.is_settled = False

    def _append(self, name: str) -> None:
        path = self.folder / name
        is_new = not path.exists() or not path.stat().st_size
        lines = [self._line() for _ in range(self.dice.randrange(1, 6))]
        if is_new and self.banner:
            lines.insert(0, 0)
        with path.open("ab") as file:
            file.write((self._header() if is_new else b"") + self._text(lines))
        self._touch(name)
        self.held.setdefault(name, []).extend(lines)
        self.written.update(lines)
        self.is_settled = False

    def _header(self) -> bytes:
        return b"n,at\n" if self.format == "csv" else b""

    def _text(self, lines: list[int]) -> bytes:
        if self.format == "csv":
            return "".join(f"{n},{n * 100 + 1_000}\n" for n in lines).encode()
        rows = (json.dumps({"n": n, "at": n * 100 + 1_000}) + "\n" for n in lines)
        return "".join(rows).encode()

    def _line(self) -> int:
        self._lines += 1
        return self._lines

    def _number(self) -> int:
        self._names += 1
        return self._names

    def _touch(self, name: str) -> None:
        """Give each change a date of its own: within a tick of the disk clock, dates are equal."""
        self._changes += 1
        dated = FIRST_NS + self._changes * 1_000_000_000
        os.utime(self.folder / name, ns=(dated, dated))


@dataclass(slots=True)
class Rotation:
    """A location, the logs of its source, and an ingester that runs now and then."""

    dice: random.Random
    logs: Logs
    location_url: str
    make_engine: MakeEngine | None
    lateness: str
    is_busy: bool = False

    async def run(self) -> None:
        """Run the schedule.

        Raises:
            AssertionError: a line is missing or repeated, and no run reported it.
        """
        asked: dict[str, Any] = {}
        if self.logs.is_timed:
            asked = {"time_column": "at", "lateness": self.lateness}
        files, form = str(self.logs.folder), self.logs.format
        spec = SourceSpec(name="c", files=files, format=form, schema="n bigint, at bigint", **asked)
        location = await open_location(self.location_url, create=True)
        self.logs.append()
        await location.sources.create(spec)
        for _ in range(self.dice.randrange(4, 10)):
            for _ in range(self.dice.randrange(1, 5)):
                self.logs.act()
            if self.is_busy:
                await self._work()
            elif self.dice.random() < 0.25:
                await self._bind()
            else:
                await self._ingest()
        self.logs.finish()
        for _ in range(2):
            await self._ingest(final=True)
        await self._compare()

    async def _work(self) -> None:
        """Ingest while tools work, and perhaps until a kill."""
        dice, logs = self.dice, self.logs
        acts, p_act, p_kill = 3, dice.choice([0.02, 0.05, 0.2]), dice.choice([0, 0, 0.02, 0.1])
        is_killed = False

        def watch() -> None:
            nonlocal acts, is_killed
            if acts and dice.random() < p_act:
                acts -= 1
                logs.act()
                logs.remember()
            if is_killed or dice.random() < p_kill:
                is_killed = True
                raise ProcessKilled

        logs.is_settled = False
        logs.during.clear()
        logs.remember()
        ingester = await self._ingester()
        location_store = WatchedStore(open_store(self.location_url, clock=SystemClock()), watch)
        try:
            ingester = await self._ingester(location_store)
            assert isinstance(ingester.source, FilesSource)
            ingester.source.store = WatchedStore(ingester.source.store, watch)
            await run_once(ingester)
        except ProcessKilled:
            pass
        except BaseExceptionGroup as error:
            if error.split(ProcessKilled)[0] is None:
                raise
        notes, waiting = ingester.source.notes(), ingester.source.waiting()
        doubts = {name for name, why in notes.items() if KNOWN_AGAIN not in why}
        logs.note(doubts if logs.is_tidy else {*doubts, *waiting})

    async def _ingester(
        self, store: WatchedStore | None = None, *, final: bool = False
    ) -> Ingester:
        location = await open_location(self.location_url, store=store)
        engine = self.make_engine(location) if self.make_engine is not None else None
        bytes_max = self.dice.choice([40, 150, 10**6])
        found = await location.sources.ingester(
            "c", bytes_max=bytes_max, final=final, engine=engine
        )
        assert isinstance(found.source, FilesSource)
        found.source.block_bytes = self.dice.choice([32, 64, 1 << 20])
        return found

    async def _ingest(self, *, final: bool = False) -> None:
        done: Summary = await run_once(await self._ingester(final=final))
        self.logs.note({*done.notes, *done.waiting})
        self.logs.is_copied = self.logs.is_edited = False
        self.logs.is_settled = not (self.logs.is_timed and self.lateness != "0s")

    async def _bind(self) -> None:
        """Bind the new rows and stop, like a process that dies there."""
        ingester = await self._ingester()
        await ingester.refresh()
        if await ingester.pending() is None and await bind(ingester):
            self.logs.note({*ingester.source.notes(), *ingester.source.waiting()})
            self.logs.is_settled = False

    async def _compare(self) -> None:
        location = await open_location(self.location_url)
        table = await (await location.collection("c")).consolidated()
        found: Counter[int] = Counter()
        for row in table.to_pylist():
            found[row["n"]] += row["_diff"]
        missing, more = self.logs.written - found, found - self.logs.written
        if self.is_busy or not self.logs.is_tidy or self.logs.is_timed:
            missing, more = (
                Counter({n: count for n, count in some.items() if n not in self.logs.reported})
                for some in (missing, more)
            )
        assert not missing, f"missing: {missing}, too much: {more}"
        assert not more, f"too much: {more}"
        errors = await (await location.collection("c_errors")).consolidated()
        assert not errors.num_rows, errors.to_pylist()


def play_rotation(
    seed: int, make_engine: MakeEngine | None = None, *, is_busy: bool = False
) -> Logs:
    """Run the schedule of a seed, and return its logs.

    Raises:
        AssertionError: a guarantee was violated.
    """
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="tidelog-rotation-") as name:
        folders = [Path(name, part) for part in ("in", "away")]
        for folder in folders:
            folder.mkdir()
        is_tidy, banner = dice.random() < 0.6, dice.random() < 0.3
        form, is_timed = dice.choice(["json", "csv"]), dice.random() < 0.4
        logs = Logs(folders[0], folders[1], dice, form, is_tidy, banner, is_timed)
        lateness = dice.choice(["0s", "1s"])
        url = Path(name, "lake").as_uri()
        asyncio.run(Rotation(dice, logs, url, make_engine, lateness, is_busy).run())
        return logs
