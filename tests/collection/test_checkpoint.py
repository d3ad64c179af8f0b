"""A restart reads a bounded number of objects of the remap shard, with the full progress."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kit.sources import lake_of, run_once
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source.binding import SourceProgress
from tidelog.collection.source.files import FilesSource
from tidelog.errors import LocationError
from tidelog.location import Location
from tidelog.persist.format import part
from tidelog.store.local.store import LocalStore
from tidelog.store.wrappers.metered import usage_of

EVERY = 3
NEVER = 10**9


@pytest.fixture(autouse=True)
def _objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store each part as an object, as in a shard with many parts."""
    monkeypatch.setattr(part, "INLINE_BYTES", -1)


async def ingester_of(location: Location, every: int) -> Ingester:
    ingester = await location.sources.ingester("c", bytes_max=120)
    assert isinstance(ingester.source, FilesSource)
    ingester.source.block_bytes = 64
    ingester.checkpoints.every = every
    return ingester


async def progress_of(location: Location, every: int) -> SourceProgress:
    ingester = await ingester_of(location, every)
    return await ingester.progress(ingester.upper.time)


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "lake" / "shard").glob("*/standing/*"))


def change(folder: Path, dice: random.Random, step: int) -> None:
    """Add a file or extend one, and sometimes rename one."""
    files = sorted((folder / "in").iterdir())
    grown = dice.choice(files) if files and dice.random() < 0.5 else folder / "in" / f"{step}.jsonl"
    with grown.open("a") as sink:
        for n in range(dice.randrange(1, 9)):
            at = 1_000 * step + dice.randrange(-3_000, 3_000)
            sink.write(f'{{"n": {n}, "at": {max(0, at)}}}\n')
    if files and dice.random() < 0.2:
        moved = dice.choice(files)
        moved.rename(moved.with_name(f"{step}-{moved.name}"))


@pytest.mark.parametrize("asked", [{}, {"time_column": "at"}])
@pytest.mark.parametrize("seed", range(2))
async def test_progress_from_a_checkpoint_equals_that_of_all_parts(
    tmp_path: Path, asked: dict[str, Any], seed: int
) -> None:
    """It equals that of an ingester that reads all parts, with renames and rows held back."""
    dice = random.Random(seed)
    location = await lake_of(tmp_path, **asked)
    kept = await ingester_of(location, EVERY)
    for step in range(12):
        change(tmp_path, dice, step)
        await run_once(kept if dice.random() < 0.5 else await ingester_of(location, EVERY))
        await kept.refresh()

        found = await progress_of(location, EVERY)
        assert found == await progress_of(location, NEVER)
    assert 0 < len(checkpoints(tmp_path)) <= 2


async def test_held_rows_are_known_from_a_checkpoint_on(tmp_path: Path) -> None:
    """A checkpoint names the ranges whose rows are held back until their time."""
    location = await lake_of(tmp_path, time_column="at", lateness="5s")
    for step in range(12):
        lines = (f'{{"n": {step}, "at": {1_000 * step + n}}}\n' for n in (0, 1))
        (tmp_path / "in" / f"{step:02d}.jsonl").write_text("".join(lines))
        await run_once(await ingester_of(location, EVERY))

        found = await progress_of(location, EVERY)
        assert found == await progress_of(location, NEVER)
        assert found.held
    assert checkpoints(tmp_path)


async def test_a_restart_reads_few_objects_after_many_runs(tmp_path: Path) -> None:
    """The number of objects that a restart reads does not grow with the number of earlier runs."""
    location, read = await lake_of(tmp_path), []
    for step in range(40):
        (tmp_path / "in" / f"{step:02d}.jsonl").write_text('{"n": 1, "at": 1}\n')
        await run_once(await ingester_of(location, EVERY))
        before = usage_of(location.store)
        await progress_of(location, EVERY)
        read.append((usage_of(location.store) - before).get_count)

    assert max(read[20:]) == max(read[:20])


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "empty"])
async def test_a_checkpoint_that_is_damaged_is_passed_over(tmp_path: Path, damage: str) -> None:
    """An ingester ignores a damaged checkpoint and reads the remap shard."""
    location = await lake_of(tmp_path)
    for step in range(9):
        change(tmp_path, random.Random(step), step)
        await run_once(await ingester_of(location, EVERY))
    expected = await progress_of(location, NEVER)
    for path in checkpoints(tmp_path):
        body = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            middle = len(body) // 2
            flipped = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
            path.write_bytes({"cut": body[:-1], "changed": flipped, "empty": b""}[damage])

    assert await progress_of(location, EVERY) == expected


async def test_a_checkpoint_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingestion continues without checkpoints, because the remap shard has the same facts."""
    put = LocalStore.put

    async def refuse(store: LocalStore, key: str, data: bytes, **how: object) -> str:
        if "/standing/" in key:
            raise LocationError("no", key=key)
        return await put(store, key, data, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStore, "put", refuse)
    location = await lake_of(tmp_path)
    for step in range(9):
        change(tmp_path, random.Random(step), step)
        await run_once(await ingester_of(location, EVERY))

    assert not checkpoints(tmp_path)
    assert await progress_of(location, EVERY) == await progress_of(location, NEVER)
