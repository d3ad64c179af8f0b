"""Shards named by users, next to those of collections and of the catalog."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kit.sources import contents, ingested, lake_of
from tidelog.location import Location, open_location

SCHEMA = pa.schema([("n", pa.int64())])
UPDATES = pa.table({"n": [1], "_time": [0], "_diff": [1]})


@pytest.mark.parametrize("kind", ["store", "sqlite", "postgres"])
async def test_users_may_call_a_shard_as_tidelog_does_its_own(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Without a prefix, such a name would overwrite the catalog or a collection."""
    location = await made(tmp_path, kind, request)
    (tmp_path / "a.jsonl").write_text('{"n": 7}\n')
    await lake_of(tmp_path, "*.jsonl", schema="n bigint")
    await ingested(tmp_path)
    taken = (await location.controller.catalog()).active("c").shards[0]
    for name in ("catalog", taken, "user.catalog", "txn.x"):
        await location.shard(name, schema=SCHEMA).compare_and_append(UPDATES, 0, 1)

    again = await open_location(str(tmp_path / "lake"))
    assert len(await contents(again)) == 1
    assert await again.shards.list() == sorted(["catalog", taken, "user.catalog", "txn.x"])
    for name in await again.shards.list():
        rows = await (await again.shard(name).snapshot(0)).to_arrow()
        assert rows.to_pydict() == {"n": [1], "_diff": [1]}


async def test_a_location_without_shards_lists_none(tmp_path: Path) -> None:
    """Neither the catalog nor an unwritten shard is listed."""
    location = await open_location(str(tmp_path / "lake"), create=True)
    await location.shard("s", schema=SCHEMA).refresh()

    assert await location.shards.list() == []


async def made(folder: Path, kind: str, request: pytest.FixtureRequest) -> Location:
    """Create a location with a kind of consensus."""
    place = {"store": "store", "sqlite": f"sqlite:{folder / 'c.db'}"}.get(kind)
    if place is None:
        place = request.getfixturevalue("postgres").url()
    return await open_location(str(folder / "lake"), create=True, consensus=place)
