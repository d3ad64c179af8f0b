"""A small location with every stored form of shards, with the same bytes each time.

This program made tests/golden/location.zip and groups.zip, which later versions of tidelog must
read. Make the newest again only if a stored form changes before the first release, or a new form is
added:

    python -m kit.golden_location tests/golden/groups.zip
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch

import pyarrow as pa

from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.location import Location, open_location
from tidelog.machine.language import Decision
from tidelog.persist.format import part
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.states.claim import Claim
from tidelog.persist.states.state import Diff

T = TypeVar("T")
MOMENT_US: Final = 1_800_000_000_000_000
COLUMNS: Final[dict[str, pa.DataType]] = {"k": pa.string(), "v": pa.int64()}
SCHEMA: Final = pa.schema(COLUMNS)
EVOLVED: Final = pa.schema({**COLUMNS, "note": pa.string()})


class GoldenClock(SystemClock):
    """A deterministic clock: each read advances it by a second, and ids are counted."""

    def __init__(self) -> None:
        self._now_us = MOMENT_US
        self._ids = 0

    def now_us(self) -> int:
        self._now_us += 1_000_000
        return self._now_us

    def monotonic_us(self) -> int:
        return self._now_us

    async def sleep(self, duration_us: int) -> None:
        await asyncio.sleep(0)

    def uniform(self) -> float:
        return 0.5

    def unique(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    async def offload(self, work: Callable[[], T]) -> T:
        return work()


def rows(schema: pa.Schema, *found: tuple[Any, ...]) -> pa.Table:
    """Return updates with a schema's columns, time and diff."""
    names = [*schema.names, "_time", "_diff"]
    whole = shard_schema(schema, key=["k"]).updates
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in found], whole)


async def make(folder: Path) -> None:
    """Make the location in a folder."""
    location = await open_location(folder, create=True, clock=GoldenClock())
    await _make_shard(location)
    await _make_finished(location)
    await _make_transactions(location)
    await _make_collection(location)


async def _make_shard(location: Location) -> None:
    shard = location.shard("prices", schema=SCHEMA, key=["k"])
    await shard.hold("history", 0)
    await shard.compare_and_append(rows(SCHEMA, ("a", 1, 0, 1), ("b", None, 1, 2)), 0, 2)
    with patch.object(part, "INLINE_BYTES", 0):
        await shard.compare_and_append(rows(SCHEMA, ("a", 1, 2, -1), ("a", 2, 2, 1)), 2, 4)
        await shard.compare_and_append(rows(SCHEMA, ("b", None, 5, -1)), 4, 6)
        async with await shard.appender("till") as till:
            await till.append(rows(SCHEMA, ("c", 3, 7, 1)), 8)
    await shard.hold("sink", 1, token=3)
    await shard.lease(2, lease_us=10**15, fixed=True, purpose="golden")
    await shard.move_hold("history", 2)
    await shard.compact(full=True)
    await shard.evolve_schema(EVOLVED)
    newer = location.shard("prices")
    await newer.refresh()
    await newer.compare_and_append(rows(EVOLVED, ("d", 4, "new", 9, 1)), 8, 10)
    for upper in range(11, 80):
        await newer.compare_and_append(None, upper - 1, upper)
    claims = (Claim(0, 8, "somebody", MOMENT_US),)
    await newer.machine.commit(lambda _: Decision(None, Diff(claims=claims)))


async def _make_finished(location: Location) -> None:
    shard = location.shard("over", schema=SCHEMA, key=["k"])
    await shard.compare_and_append(rows(SCHEMA, ("a", 1, 0, 1)), 0, 2)
    await shard.drop()


async def _make_transactions(location: Location) -> None:
    bank = location.shards.transactions("bank")
    for name in ("giro", "savings"):
        await bank.register(location.shard(name, schema=SCHEMA, key=["k"]))
    for number in range(2):
        begun = await bank.begin()
        begun.write("giro", pa.table({"k": ["ann"], "v": [number]}, schema=SCHEMA))
        begun.write("savings", pa.table({"k": ["ann"], "v": [10 * number]}, schema=SCHEMA))
        await begun.commit()
        await bank.apply()


async def _make_collection(location: Location) -> None:
    spec = SourceSpec(
        name="seen",
        kind="generator",
        settings={"shape": "key-value", "rows": "40", "keys": "5", "seed": "7"},
        envelope="upsert",
        key=("key",),
        time_column="time",
        retain="5s",
    )
    await location.sources.create(spec)
    ingester = await location.sources.ingester("seen", bytes_max=320)
    await run_ingest(
        ingester, follow=False, interval_us=1, on_tick=lambda _: None, stop=lambda: False
    )


def pack(folder: Path, archive: Path) -> None:
    """Put all files of a folder into an archive, with one modification time for all."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and ".tidelog" not in path.parts:
                info = zipfile.ZipInfo(str(path.relative_to(folder)), (2026, 1, 1, 0, 0, 0))
                packed.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)


def write(archive: Path, make: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """Make a location, and write it to an archive."""
    folder = Path(tempfile.mkdtemp(prefix="tidelog-golden-"))
    try:
        asyncio.run(make(folder))
        pack(folder, archive)
    finally:
        shutil.rmtree(folder)


def stored_in(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a location's objects by key."""
    files = (path for path in folder.rglob("*") if path.is_file() and ".tidelog" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


async def check_stored_as_then(
    folder: Path, archive: Path, make: Callable[[Path], Coroutine[Any, Any, None]]
) -> None:
    """Check that a new location has the keys of an archive, and the same bytes.

    If a library of another version writes other Parquet, only the keys are compared.
    """
    await make(folder)
    with zipfile.ZipFile(archive) as packed:
        then = {name: packed.read(name) for name in packed.namelist()}
    now = stored_in(folder)
    assert sorted(set(now) - set(then)) == []
    assert sorted(set(then) - set(now)) == []
    # The states contain checksums of the Parquet files, so they would differ as well.
    parts = [name for name in now if name.endswith(".parquet")]
    if all(now[name] == then[name] for name in parts):
        assert [name for name in now if now[name] != then[name]] == []


if __name__ == "__main__":
    write(Path(sys.argv[1]), make)
