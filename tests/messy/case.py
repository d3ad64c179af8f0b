"""One case: a seed, from an empty folder to the collection's contents, compared with the model."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kit.clocks import OneThread
from kit.sources import mint, run_once
from messy.model import Model, SeenFile, shown
from messy.records import Row
from messy.settings import Settings, draw_settings
from messy.world import World
from tidelog.collection.ingest.engine import Engine
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.source.files import FilesSource
from tidelog.errors import AsOfNotComplete
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore

EngineOf = Callable[[Location], Engine]
BYTES_MAX = (1, 30, 300, *[10**8] * 4)
# A tick takes bytes of row groups and cloud objects even if no row begins in them. One byte at a
# time, it would need thousands of ticks.
GROUPS_MAX = (500, 3_000, *[10**8] * 4)


@dataclass(slots=True)
class Outcome:
    """The result of a case."""

    seed: int
    settings: Settings
    differences: list[str] = field(default_factory=list)
    drawn: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    bad: int = 0
    told: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        again = f"make messy MESSY_ARGS='--seed {self.seed} --cases 1 --keep FOLDER'"
        lines = [f"seed {self.seed}: {self.settings}", f"  again: {again}"]
        lines += [f"  {line}" for line in (*self.told, *self.differences[:12])]
        return "\n".join(lines)


def run_case(seed: int, folder: Path, *, engine_of: EngineOf | None = None) -> Outcome:
    """Run one case in an empty folder. The same seed gives the same case."""
    return asyncio.run(arun_case(seed, folder, engine_of=engine_of))


async def arun_case(seed: int, folder: Path, *, engine_of: EngineOf | None = None) -> Outcome:
    """Run one case in an empty folder, on this process's engine or on another."""
    dice = random.Random(f"messy {seed}")
    settings = draw_settings(dice)
    outcome = Outcome(seed, settings)
    world, model = World(dice, settings, folder / "in"), Model(settings)
    run = _Run(dice, settings, engine_of)
    pattern = "" if settings.pattern == "**" else f"/{settings.pattern}"
    steps = dice.choice([1, 1, 2, 2, 3])
    if dice.random() < 0.5:
        await run.open(folder, f"{folder / 'in'}{pattern}")
    for step in range(steps):
        is_last = step == steps - 1
        final = (is_last and settings.is_held) or dice.random() < (0.4 if is_last else 0.1)
        world.change(model, is_first=step == 0, is_last=is_last, final=final)
        seen = world.seen()
        if run.location is None:
            if settings.format == "csv" and not _can_be_guessed_from(seen):
                outcome.told.append("there is no file to guess from")
                break
            await run.open(folder, f"{folder / 'in'}{pattern}")
        model.take(seen, step=step, final=final or settings.is_versioned)
        outcome.told.append(f"step {step}: final={final} {[_told(one) for one in seen]}")
        try:
            summary = await run.step(final=final)
        except Exception as error:  # noqa: BLE001 - any error is a difference
            outcome.differences.append(f"step {step}: {type(error).__name__}: {error}")
            break
        outcome.differences += compare_waiting(model, summary)
        if is_last or (not settings.is_held and dice.random() < 0.2):
            outcome.differences += await compare(model, run.opened)
        if outcome.differences:
            break
    outcome.drawn = world.drawn
    outcome.rows, outcome.bad = len(model.rows), len(model.bad)
    return outcome


@dataclass(slots=True)
class _Run:
    """The runs of a case: by new or continuing ingesters, one or two at once."""

    dice: random.Random
    settings: Settings
    engine_of: EngineOf | None
    location: Location | None = None
    last: Ingester | None = None

    @property
    def opened(self) -> Location:
        assert self.location is not None
        return self.location

    async def open(self, folder: Path, files: str) -> None:
        if self.engine_of is not None:
            self.location = await open_location(str(folder / "lake"), create=True)
        else:
            store = MemoryStore(name="memory://")
            self.location = await open_location(
                "memory://", create=True, clock=OneThread(), store=store
            )
        await self.location.sources.create(self.settings.spec(files))

    async def step(self, *, final: bool) -> Summary:
        """Take all rows that exist."""
        dice, last = self.dice, self.last
        way = dice.choice(["new", "new", "new", "new", "on", "two", "dies"])
        by_bytes = self.settings.format == "parquet" or self.settings.is_versioned
        sizes = GROUPS_MAX if by_bytes else BYTES_MAX
        bytes_max = dice.choice(sizes)
        if way == "on" and last is not None and last.final == final:
            last.bytes_max = bytes_max
            return await run_once(last)
        self.last = await self._ingester(final, bytes_max)
        if way == "dies":
            await die_after_minting(await self._ingester(final, bytes_max))
        if way == "two":
            other = await self._ingester(final, dice.choice(sizes))
            await asyncio.gather(run_once(other), run_once(self.last))
            # The slower one may not have looked at all waiting files.
            self.last = await self._ingester(final, bytes_max)
        return await run_once(self.last)

    async def _ingester(self, final: bool, bytes_max: int) -> Ingester:
        engine = None if self.engine_of is None else self.engine_of(self.opened)
        found = await self.opened.sources.ingester(
            "c", engine=engine, bytes_max=bytes_max, final=final
        )
        assert isinstance(found.source, FilesSource)
        found.source.is_versioned = self.settings.is_versioned
        found.source.block_bytes = self.settings.block_bytes
        found.source.piece_bytes = self.settings.piece_bytes
        return found


async def die_after_minting(ingester: Ingester) -> None:
    """Record the next tick, and die before any of it is written."""
    lower = ingester.upper.time
    if ingester.remap.state.upper != lower:
        return
    plan = await ingester.plan(await ingester.source.head(), lower)
    if plan is not None:
        await mint(ingester, plan)


def compare_waiting(model: Model, summary: Summary) -> list[str]:
    """Return the differences between the reported waiting files and the model's."""
    told = set(summary.waiting)
    return [
        *(f"{path!r} waits, and is not named" for path in sorted(model.waiting - told)),
        *(
            f"{path!r} is said to wait: {summary.waiting[path]}"
            for path in sorted(told - model.waiting - model.may_wait)
        ),
    ]


async def compare(model: Model, location: Location) -> list[str]:
    """Return the differences between the collection, with its errors, and the model."""
    found: Counter[str] = Counter()
    keys: dict[str, list[str]] = {}
    for row in await _rows_of(location, "c"):
        count = row.pop("_diff")
        found[shown(row)] += count
        key = shown({name: row[name] for name in model.settings.keys})
        keys.setdefault(key, []).extend([shown(row)] * count)
    differences = _of_keys(model, keys) if model.settings.keys else _of_rows(model, found)
    told: list[tuple[str, int, str]] = []
    for row in await _rows_of(location, "c_errors"):
        told += [(row["file"], row["offset"], f"{row['reason']}: {row['text'][:60]!r}")] * row[
            "_diff"
        ]
    return differences + _of_bad_rows(model, told)


async def _rows_of(location: Location, name: str) -> list[Row]:
    collection = await location.collection(name)
    with suppress(AsOfNotComplete):
        return (await collection.consolidated()).to_pylist()
    return []  # No tick has happened yet.


def _of_rows(model: Model, found: Counter[str]) -> list[str]:
    wanted = model.contents()
    return [
        *(f"lost {n} x {row}" for row, n in sorted((wanted - found).items())),
        *(f"too many {n} x {row}" for row, n in sorted((found - wanted).items())),
    ]


def _of_keys(model: Model, found: dict[str, list[str]]) -> list[str]:
    differences = []
    wanted = model.newest()
    for key in sorted({*wanted, *found}):
        there = found.get(key, [])
        may = wanted.get(key, {""})
        if len(there) > 1 or (there[0] if there else "") not in may:
            differences.append(f"key {key}: {there or 'nothing'}, not {sorted(may)}")
    return differences


def _of_bad_rows(model: Model, told: Sequence[tuple[str, int, str]]) -> list[str]:
    left, differences = list(told), []
    for bad in sorted(model.bad, key=lambda one: (one.path, one.offset)):
        places = range(bad.offset, bad.offset + bad.slack + 1)
        match = next((one for one in left if one[0] == bad.path and one[1] in places), None)
        if match is None:
            differences.append(f"no bad row in {bad.path!r} at {bad.offset}: {bad.note}")
        else:
            left.remove(match)
    return differences + [f"bad row in {path!r} at {at}: {why}" for path, at, why in left]


def _can_be_guessed_from(files: Sequence[SeenFile]) -> bool:
    """Return True if the first file can be read, as the creation of the source needs."""
    first = min(files, key=lambda one: one.path, default=None)
    if first is None or not first.units:
        return first is None
    unit = first.units[0]
    is_there = first.visible >= len(unit.text) and not first.is_stuck
    return is_there and (unit.is_header or unit.row is not None)


def _told(one: object) -> str:
    path, units, visible = (getattr(one, name) for name in ("path", "units", "visible"))
    return f"{path}: {len(units)} units, {visible} of {sum(len(unit.text) for unit in units)}"
