"""One schedule, drawn from a seed: concurrent ingesters, and reads in between."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.clocks import OneThread
from kit.sources import run_once
from schedules.files import Files, Row
from schedules.process import LUCKS, ProcessStore, SkewedClock
from tidelog.collection.source.files import FilesSource
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import ContentionError, LocationError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore

PATIENCE = 2_000_000  # After so many turns of the loop, an ingester counts as stuck.
SCHEMA = "k bigint, n bigint, at bigint, gone boolean"


@dataclass(slots=True)
class Play:
    """A location, the files of its source, and the processes that work on it."""

    dice: random.Random
    files: Files
    keyed: bool
    timed: bool
    deletes: bool
    lateness: str
    store: MemoryStore = field(default_factory=lambda: MemoryStore(name="memory://"))
    processes: list[ProcessStore] = field(default_factory=list)
    seen: dict[int, Counter[Row]] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, folder: Path) -> Play:
        """Draw the settings of a schedule."""
        dice = random.Random(seed)
        timed, keyed = dice.random() < 0.65, dice.random() < 0.5
        files = Files(
            folder,
            dice,
            format=dice.choice(["json", "csv"]),
            suffix=dice.choice(["", ".gz", ".zst", ""]),
            is_torn=dice.random() < 0.5,
        )
        deletes = keyed and dice.random() < 0.6
        lateness = dice.choice(["0s", "1s", "20s", "60s"]) if timed else "0s"
        return cls(dice, files, keyed, timed, deletes, lateness)

    async def run(self) -> None:
        """Run the schedule.

        Raises:
            AssertionError: the contents differ from the plain list, or changed once complete.
        """
        await (await self._open(create=True)).sources.create(self._spec())
        for _ in range(self.dice.randrange(3, 9)):
            for _ in range(self.dice.randrange(1, 4)):
                self.files.write()
            await self._work()
            await self._look()
            if self.lateness == "0s" and self.dice.random() < 0.5:
                await self._settle()
                await self._ingest(self.dice.choice([300, 10**6]))
                self.files.shuffle(copies=not self.keyed)
        await self._settle()
        self.files.finish()
        for _ in range(2):
            await self._ingest(self.dice.choice([300, 10**6]), final=True)
        await self._look()
        await self._compare()

    def _spec(self) -> SourceSpec:
        asked: dict[str, Any] = {"shards": self.dice.choice([1, 1, 2, 3])}
        if self.timed:
            asked |= {"time_column": "at", "lateness": self.lateness}
        if self.keyed:
            asked |= {"envelope": "upsert", "key": ("k",)}
        if self.deletes:
            asked |= {"delete_when": "gone"}
        files = f"{self.files.folder}/*.{self.files.format}{self.files.suffix}"
        return SourceSpec(name="s", files=files, format=self.files.format, schema=SCHEMA, **asked)

    async def _open(self, *, create: bool = False) -> Location:
        return await open_location("memory://", create=create, clock=OneThread(), store=self.store)

    async def _ingest(self, bytes_max: int, *, final: bool = False) -> None:
        location = await self._open()
        await run_once(await location.sources.ingester("s", bytes_max=bytes_max, final=final))

    async def _work(self) -> None:
        """Run some ingesters concurrently, while files continue to change."""
        dice = self.dice
        stores = [
            ProcessStore(self.store, dice, dice.choice(LUCKS))
            for _ in range(dice.choice([1, 2, 3]))
        ]
        self.processes += stores
        tasks = [asyncio.ensure_future(self._process(store)) for store in stores]
        for _ in range(dice.randrange(3)):
            for _ in range(dice.randrange(200)):
                await asyncio.sleep(0)
            self.files.write()
        for _ in range(PATIENCE):
            if all(task.done() or store.is_dead for task, store in zip(tasks, stores, strict=True)):
                break
            await asyncio.sleep(0)
        else:
            raise AssertionError("an ingester neither ends nor dies")
        for task in tasks:
            if not task.done():
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _process(self, store: ProcessStore) -> None:
        """Ingest once or a few times, like a command that is restarted after a failure."""
        dice = self.dice
        clock = SkewedClock(dice)
        final = not self.files.is_torn and dice.random() < 0.15
        while True:
            with suppress(LocationError, ContentionError):
                location = await open_location("memory://", clock=clock, store=store)
                bytes_max = dice.choice([60, 150, 600, 10**6])
                ingester = await location.sources.ingester("s", bytes_max=bytes_max, final=final)
                assert isinstance(ingester.source, FilesSource)
                ingester.source.block_bytes = dice.choice([32, 64, 1 << 20])
                ingester.source.piece_bytes = dice.choice([64, 256, 1 << 24])
                for _ in range(dice.randrange(1, 4)):
                    await run_once(ingester)
                return

    async def _settle(self) -> None:
        """Wait for the puts that land late."""
        for process in self.processes:
            for late in process.late:
                await late

    async def _look(self) -> None:
        """Read some complete times: their contents never change, and a key has one row."""
        location = await self._open()
        collection = await location.collection("s")
        upper = collection.upper.time
        if not upper:
            return
        times = {upper - 1, self.dice.randrange(upper)}
        times |= {row[2] for row in self.files.rows[-3:] if row[2] < upper}
        times |= set(self.dice.sample(sorted(self.seen), min(len(self.seen), 3)))
        for time in sorted(times):
            found = await self._contents(location, time)
            before = self.seen.setdefault(time, found)
            assert found == before, f"at {time} came {found - before}, went {before - found}"
            keys = Counter(row[0] for row in found.elements())
            assert not self.keyed or max(keys.values(), default=0) <= 1, f"a key twice at {time}"

    async def _compare(self) -> None:
        """Compare the final contents with the plain list."""
        location = await self._open()
        found = await self._contents(location)
        expected = self.files.expected(keyed=self.keyed, timed=self.timed, deletes=self.deletes)
        if expected is not None:
            if self.keyed:
                found = Counter({r: n for r, n in found.items() if not self.files.is_tied(r[0])})
                expected = Counter(
                    {r: n for r, n in expected.items() if not self.files.is_tied(r[0])}
                )
            assert found == expected, f"missing {expected - found}, too much {found - expected}"
        errors = await (await location.collection("s_errors")).consolidated()
        assert int(errors.column("_diff").to_numpy().sum()) == self.files.bad, errors.to_pylist()

    async def _contents(self, location: Location, time: int | None = None) -> Counter[Row]:
        rows = await (await location.collection("s")).consolidated(time)
        found: Counter[Row] = Counter()
        for row in rows.to_pylist():
            found[row["k"], row["n"], row["at"], row["gone"]] += row["_diff"]
        return found


def play(seed: int) -> Play:
    """Run the schedule of a seed, and return it.

    Raises:
        AssertionError: a guarantee was violated.
    """
    with tempfile.TemporaryDirectory(prefix="tidelog-schedule-") as folder:
        played = Play.of(seed, Path(folder))
        asyncio.run(played.run())
        return played
