"""Options of a location's store: cache and hedging, and the objects that a cache may hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tidelog
from tidelog.core.clock import SystemClock
from tidelog.core.ids import ShardId
from tidelog.errors import CorruptionError, UsageError
from tidelog.location import Location, open_location
from tidelog.persist.format.part import part_path
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.cached import CachedStore
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrappers.metered import MeteringStore, Usage, usage_of
from tidelog.store.wrapping import (
    NOTHING_TOLD,
    Wrapping,
    is_part,
    open_wrapped,
    split_wrapping,
    told_wrapping,
    with_wrapping,
    wrap,
)
from tidelog.wal.log import Log

CLOCK = SystemClock()
ROWS = 50_000
SCHEMA = pa.schema([("k", pa.int64())])
PLACE = "s3://b/lake"
REGION = "s3://b/lake?region=us-east-1"
Change = Callable[[MemoryStore, str], None]


@pytest.mark.parametrize(
    ("url", "place", "told"),
    [
        ("s3://b/lake", "s3://b/lake", NOTHING_TOLD),
        ("s3://b/lake?cache=256MiB", "s3://b/lake", Wrapping(cache="256MiB")),
        ("gs://b?hedge=on&cache=off", "gs://b", Wrapping(cache="off", hedge=True)),
        ("az://c/x?hedge=off", "az://c/x", Wrapping(hedge=False)),
        (f"{REGION}&cache=/a%20b&hedge=on", REGION, Wrapping(cache="/a b", hedge=True)),
        ("s3://b/x?cache=/v&region=us-east-1", "s3://b/x?region=us-east-1", Wrapping(cache="/v")),
        ("/some/folder", "/some/folder", NOTHING_TOLD),
        ("memory://", "memory://", NOTHING_TOLD),
    ],
)
def test_options_leave_the_place_as_it_is(url: str, place: str, told: Wrapping) -> None:
    """Options survive a round trip through the URL and do not change the stored place."""
    assert split_wrapping(url) == (place, told)
    assert split_wrapping(with_wrapping(place, told)) == (place, told)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://b?cache=", "the absolute path of a folder"),
        ("s3://b?cache=0MiB", "the absolute path of a folder"),
        ("s3://b?cache=256", "the absolute path of a folder"),
        ("s3://b?cache=some/folder", "the absolute path of a folder"),
        ("s3://b?cache=1MiB&cache=2MiB", "twice"),
        ("gs://b?hedge=yes", "hedge must be on or off, not 'yes'"),
        ("s3://b?hedge=on&cash=1MiB", "'cash' is not a parameter"),
        ("file:///some/lake?cache=1MiB", "TIDELOG_CACHE"),
        ("/some/lake?hedge=on", "TIDELOG_HEDGE"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(url: str, sentence: str) -> None:
    """A wrong option is refused before any request, with the accepted values."""
    with pytest.raises(UsageError, match=sentence):
        open_wrapped(url, clock=CLOCK)


async def test_arguments_and_the_environment_are_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong arguments and wrong environment variables are refused, and no location is created."""
    place = tmp_path / "lake"
    file = tmp_path / "file"
    file.write_bytes(b"")
    for cache in ("much", str(file), 7):
        with pytest.raises(UsageError, match="cache"):
            await open_location(place, create=True, cache=cache)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="hedge must be True or False"):
        await open_location(place, create=True, hedge="on")  # type: ignore[arg-type]
    monkeypatch.setenv("TIDELOG_HEDGE", "1")
    with pytest.raises(UsageError, match="hedge must be on or off"):
        await open_location(place, create=True)
    assert not place.exists()


def test_what_is_said_nearest_counts() -> None:
    """An argument takes precedence over the URL, and the URL over the environment."""
    environment = {"TIDELOG_CACHE": "1MiB", "TIDELOG_HEDGE": "on"}
    given, around = told_wrapping(cache="off", hedge=None, environment=environment)
    in_url = Wrapping(cache="2MiB", hedge=False)

    assert given.otherwise(in_url).otherwise(around) == Wrapping(cache="off", hedge=False)
    assert NOTHING_TOLD.otherwise(around) == Wrapping(cache="1MiB", hedge=True)


async def test_the_order_is_cached_hedged_metered() -> None:
    """The cache wraps the hedging, which wraps the meter; consensus sees no copies."""
    found = wrap(MemoryStore(), Wrapping(cache="1MiB", hedge=True), clock=CLOCK)

    assert isinstance(found.whole, CachedStore)
    assert isinstance(found.fresh, HedgedStore)
    assert isinstance(found.meter, MeteringStore)
    await found.whole.put("a", b"a")
    assert usage_of(found.whole) == found.meter.usage() != Usage()
    bare = wrap(MemoryStore(), Wrapping(cache="off", hedge=False), clock=CLOCK)
    assert bare.whole is bare.fresh is bare.meter


def test_copies_are_kept_of_parts_only() -> None:
    """Objects that may be replaced, or created again, are read from the store."""
    others = [
        "tidelog.json",
        "consensus/catalog",
        "consensus-spill/s1/0001",
        "shard/s1/standing/5-abc",
        "log/l/manifest/MANIFEST",
        "log/l/epoch/1/0/0.parquet",
        "log/l/log/Bucket=0/FragmentSeqNo=1.parquet",
        "log/shard/part/00000001/x.parquet",
        "status/x.json",
    ]
    assert is_part(part_path(ShardId("user.s1"), 1, "x"))
    assert not [key for key in others if is_part(key)]


def many_rows() -> pa.Table:
    """Return updates that make a part of some hundred kilobytes, at time 0."""
    keys = np.frombuffer(np.random.default_rng(7).bytes(8 * ROWS), np.int64)
    ones = np.ones(ROWS, np.int64)
    return pa.table({"k": keys, "_time": 0 * ones, "_diff": ones})


async def opened(store: MemoryStore, cache: str, *, create: bool = False) -> Location:
    return await open_location("memory://", create=create, cache=cache, hedge=True, store=store)


async def written(store: MemoryStore, cache: str) -> tuple[Location, ShardSnapshot]:
    """Make a shard with one stored part. Return a location with an empty cache, and a snapshot."""
    first = await opened(store, "off", create=True)
    shard = first.shard("s1", schema=SCHEMA, key=["k"])
    rows = many_rows()
    await shard.compare_and_append(rows, 0, 1)
    location = await opened(store, cache)
    return location, await location.shard("s1").snapshot(0)


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_parts_are_read_once(kind: str, tmp_path: Path) -> None:
    """A part is read from the store once. A copy in a folder also serves a later process."""
    store = MemoryStore()
    cache = "8MiB" if kind == "memory" else str(tmp_path / "copies")
    location, snapshot = await written(store, cache)
    assert (await snapshot.to_arrow()).num_rows == ROWS
    before = usage_of(location.store).read_bytes
    later = location if kind == "memory" else await opened(store, cache)
    again = await later.shard("s1").snapshot(0)
    begun = usage_of(later.store).read_bytes
    assert (await again.to_arrow()).num_rows == ROWS

    assert before > ROWS
    assert usage_of(later.store).read_bytes == begun


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_a_copy_that_came_damaged_is_not_believed_twice(kind: str, tmp_path: Path) -> None:
    """A damaged copy is read again, or one network error would last as long as it."""
    store = MemoryStore()
    cache = "8MiB" if kind == "memory" else str(tmp_path / "copies")
    location, snapshot = await written(store, cache)
    (key,) = [key for key in store.objects if is_part(key)]
    whole = store.objects[key]
    await store.put(key, bytes(len(whole.data)))
    with pytest.raises(CorruptionError):
        await snapshot.to_arrow()
    # A reader without checks would keep a copy of the damaged object.
    await location.store.get(key)
    await store.put(key, whole.data)

    assert (await snapshot.to_arrow()).num_rows == ROWS


async def test_a_scrub_reads_what_lies_there() -> None:
    """A scrub reads the store, because a good copy proves nothing about the object."""
    store = MemoryStore()
    location, snapshot = await written(store, "8MiB")
    await snapshot.to_arrow()
    (key,) = [key for key in store.objects if is_part(key)]
    await store.put(key, bytes(len(store.objects[key].data)))
    kept = await location.maintenance.groups(("s1",))
    found = [one async for one in location.maintenance.scrub(kept)]

    assert [len(one.found.damages) for one in found] == [1]


async def test_consensus_is_asked_each_time() -> None:
    """A handle with a cache sees what another process committed."""
    store = MemoryStore()
    location, _ = await written(store, "8MiB")
    shard = location.shard("s1")
    assert (await shard.refresh()).upper == 1
    other = (await opened(store, "off")).shard("s1", schema=SCHEMA, key=["k"])
    rows = pa.table({"k": [1], "_time": [1], "_diff": [1]})
    await other.compare_and_append(rows, 1, 2)

    assert (await shard.refresh()).upper == 2


async def test_a_log_is_read_from_the_store_each_time() -> None:
    """A suspended writer may create a collected slot again, so no log is cached."""
    store = MemoryStore()
    location = await opened(store, "8MiB", create=True)
    async with await location.logs.create("l") as log:
        await log.append([b"record" * 1_000])
    asked: list[int] = []
    for _ in range(3):
        before = usage_of(location.store).read_bytes
        assert len(await bodies_of(await location.log("l"))) == 1
        asked.append(usage_of(location.store).read_bytes - before)

    assert asked[0] == asked[1] == asked[2] > 0


async def bodies_of(log: Log) -> list[bytes | None]:
    """Return the records of a log."""
    return [body async for table in log.scan() for body in table.column("body").to_pylist()]


async def test_the_location_is_known_by_its_place_alone() -> None:
    """A location's identity has no options; a handle passes them to other processes."""
    store = MemoryStore()
    location = await open_location(PLACE + "?hedge=on", create=True, store=store, cache="1MiB")
    plain = await open_location(PLACE, store=store)

    assert location.url == plain.url == plain.executor_url == PLACE
    assert location.executor_url == "s3://b/lake?cache=1MiB&hedge=on"
    assert location.shard("s", schema=SCHEMA).location_url == location.executor_url
    mark = await store.get("tidelog.json")
    assert b"cache" not in mark.data
    assert b"hedge" not in mark.data


def test_connect_takes_both(tmp_path: Path) -> None:
    """The sync face accepts the same options."""
    copies = tmp_path / "copies"
    with tidelog.connect(tmp_path / "lake", create=True, cache=copies, hedge=True) as lake:
        shard = lake.shard("s1", schema=SCHEMA, key=["k"])
        rows = many_rows()
        shard.compare_and_append(rows, 0, 1)
        assert shard.snapshot(0).to_arrow().num_rows == ROWS

    assert [name for _, _, names in os.walk(copies) for name in names]
