"""Read-only connections to stores, disks and databases, and after interrupted commands."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidelog
from kit.filled_lake import SCHEMA, filled_store, rows
from kit.postgres_server import PostgresServer
from tidelog.consensus.kinds import POSTGRES, ConsensusPlace, open_consensus
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import SeqNo
from tidelog.errors import ConsensusGone, LocationError, NoSuchLog, UsageError
from tidelog.location import Location, open_location
from tidelog.persist.handle.shard import Shard
from tidelog.persist.transactions.transition import decide_forget
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.read_only import is_read_only
from tidelog.testing.recorded import RecordedStore


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    return filled_store(tmp_path_factory.mktemp("rows"))


def last_time(upper: Frontier) -> int:
    assert upper.time is not None
    return upper.time - 1


async def contents_of(lake: Location) -> dict[str, list[Any]]:
    """Return the contents of shards that only their transactions have, and of a table."""
    first = lake.shard("first")
    both = lake.shards.transactions("both")
    time = last_time(await first.upper())
    found: dict[str, list[Any]] = {"time": [time]}
    found["shard"] = (await (await first.snapshot(time)).to_arrow(consolidated=True)).to_pylist()
    found["both"] = (
        await (await both.snapshot("first", time)).to_arrow(consolidated=True)
    ).to_pylist()
    found["listen"] = (await anext(first.listen(0))).updates.to_pylist()
    found["table"] = (await (await lake.table("table")).consolidated()).to_pylist()
    found["history"] = await (await lake.table("table")).history()
    return found


async def test_reads_return_what_other_connections_return(filled: MemoryStore) -> None:
    """A registered shard has the rows that no process has applied yet; nothing is applied."""
    store = MemoryStore(objects=dict(filled.objects))
    before = dict(store.objects)

    found = await contents_of(await open_location("memory://", store=store, read_only=True))

    assert store.objects == before
    assert found == await contents_of(await open_location("memory://", store=store))
    assert store.objects != before, "an ordinary connection applies the transactions"
    assert [row["k"] for row in found["shard"]] == [0, 1, 2, 3]


async def test_an_interrupted_creation_of_a_keyed_log_is_not_finished() -> None:
    """The creator died before it made the wal, and a read-only connection makes none."""
    store = MemoryStore()
    lake = await open_location("memory://", create=True, store=store)
    await lake.keyed.create("keyed")
    for key in [one for one in store.objects if one.startswith("keylog/")]:
        del store.objects[key]
    before = dict(store.objects)

    opened = await open_location("memory://", store=store, read_only=True)
    with pytest.raises(NoSuchLog):
        await opened.keyed.reader("keyed")

    assert store.objects == before


async def test_an_interrupted_end_of_a_registration_is_not_finished(filled: MemoryStore) -> None:
    """The transactions have forgotten the shard, which does not know it yet."""
    store = MemoryStore(objects=dict(filled.objects))
    lake = await open_location("memory://", store=store)
    transactions = lake.shards.transactions("both")
    number = (await lake.shard("first").refresh()).registered.number
    await transactions.machine.commit(
        lambda state: decide_forget(state, transactions.id_of("first"), number)
    )
    before = dict(store.objects)

    opened = await open_location("memory://", store=store, read_only=True)
    shard = opened.shard("first")
    time = last_time(await shard.upper())
    found = await shard.snapshot(time)
    other = await opened.shards.transactions("both").snapshot("first", time)

    for snapshot in (found, other):
        table = (await snapshot.to_arrow()).sort_by("k")
        assert table.column("k").to_pylist() == [0, 1, 2, 3]
    assert store.objects == before


async def test_a_snapshot_is_planned_again_after_a_merge(
    filled: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge began before the last commit, so its shard lacks the time of the snapshot."""
    store = MemoryStore(objects=dict(filled.objects))
    writer = await open_location("memory://", store=store)
    large = pa.table({"k": range(9_000), "v": [f"{n:064}" for n in range(9_000)]}, schema=SCHEMA)
    both = writer.shards.transactions("both")
    for _ in range(2):
        await both.insert({"first": large})
    await both.apply()
    await both.insert({"first": rows(5)})
    opened = await open_location("memory://", store=store, read_only=True)
    shard = opened.shard("first")
    snapshot = await shard.snapshot(last_time(await shard.upper()))

    merged = writer.shard("first")
    with monkeypatch.context() as patched:
        patched.setattr("tidelog.persist.maintenance.compactor.caught_up", Shard.refresh)
        await merged.compact(full=True)
    await merged.collect(after_us=0)

    assert not {part.path for part in snapshot.parts if part.path} <= set(store.objects)
    assert (await snapshot.to_arrow(consolidated=True)).num_rows == 9_005


async def test_a_new_location_is_not_created() -> None:
    """`create` and `read_only` contradict each other: nothing is sent."""
    store = RecordedStore(MemoryStore())

    with pytest.raises(UsageError, match="read-only"):
        await open_location("memory://", store=store, create=True, read_only=True)

    assert store.records == []


async def test_the_environment_makes_connections_read_only(
    filled: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument wins over the environment, whose value is on or off."""
    monkeypatch.setenv("TIDELOG_READ_ONLY", "on")
    store = MemoryStore(objects=dict(filled.objects))

    lake = await open_location("memory://", store=store)
    with pytest.raises(UsageError, match="read-only"):
        await lake.logs.create("new")
    lake = await open_location("memory://", store=store, read_only=False)
    await lake.logs.create("new")

    monkeypatch.setenv("TIDELOG_READ_ONLY", "1")
    with pytest.raises(UsageError, match="TIDELOG_READ_ONLY must be on or off, not '1'"):
        await open_location("memory://", store=store)
    with pytest.raises(UsageError, match="read_only must be True or False"):
        await open_location("memory://", store=store, read_only="yes")  # type: ignore[arg-type]


def test_wrapped_stores_are_read_only(filled: MemoryStore) -> None:
    """A cache, hedged reads and folders are above the store that refuses writes."""

    async def main() -> None:
        lake = await open_location(
            "memory://", store=store, cache="16MiB", hedge=True, read_only=True
        )
        await (await lake.table("table")).consolidated()
        for place in (lake.store, lake.stores.fresh, lake.stores.meter, Within(lake.store, "a")):
            assert is_read_only(place)
            with pytest.raises(UsageError, match="read-only"):
                await place.put("key", b"")
            with pytest.raises(UsageError, match="read-only"):
                await place.delete(["key"])

    store = RecordedStore(filled)
    asyncio.run(main())

    assert {one.op for one in store.records} <= {"get", "refresh", "list"}


def test_a_connection_changes_no_file_of_a_location_on_disk(tmp_path: Path) -> None:
    """The folder may be on a file system that is mounted read-only."""
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        lake.tables.create("t", SCHEMA, key=["k"]).insert(rows(1, 2))
        lake.logs.create("l").append([b"a"])
    before = tree(tmp_path)

    with tidelog.connect(tmp_path / "lake", read_only=True) as lake:
        assert lake.sql("SELECT count(*) AS n FROM t").table.to_pylist() == [{"n": 2}]
        assert len(list(lake.log("l").scan())) == 1
        with pytest.raises(UsageError, match="read-only"):
            lake.table("t").insert(rows(3))

    assert tree(tmp_path) == before


@pytest.mark.parametrize("ends", [("",), ("", "-wal")], ids=["a file", "a file and its log"])
def test_a_sqlite_file_that_no_process_has_open_is_not_changed(
    tmp_path: Path, ends: tuple[str, ...]
) -> None:
    """SQLite itself would create files next to this one."""
    path, copy = tmp_path / "consensus.db", tmp_path / "copy" / "consensus.db"
    copy.parent.mkdir()
    with tidelog.connect(tmp_path / "lake", create=True, consensus=f"sqlite:{path}") as writer:
        writer.tables.create("t", SCHEMA, key=["k"]).insert(rows(1, 2))
        if "-wal" not in ends:
            sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for end in ends:
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
            assert Path(f"{copy}{end}").stat().st_size
    before = tree(copy.parent)

    with tidelog.connect(tmp_path / "lake", consensus=f"sqlite:{copy}", read_only=True) as lake:
        assert lake.table("t").consolidated().num_rows == 2
        with pytest.raises(UsageError, match="read-only"):
            lake.move_consensus("store")

    assert tree(copy.parent) == before


def test_a_sqlite_file_that_a_process_has_open_is_not_changed(tmp_path: Path) -> None:
    """The newest rows are in the write-ahead log, and each read finds them."""
    place = f"sqlite:{tmp_path / 'consensus.db'}"
    with tidelog.connect(tmp_path / "lake", create=True, consensus=place) as writer:
        table = writer.tables.create("t", SCHEMA, key=["k"])
        table.insert(rows(1, 2))
        before = tree(tmp_path)
        with tidelog.connect(tmp_path / "lake", read_only=True) as lake:
            assert lake.table("t").consolidated().num_rows == 2
            assert shown(tree(tmp_path)) == shown(before)
            table.insert(rows(3))
            assert lake.table("t").consolidated().num_rows == 3


def test_a_missing_sqlite_file_is_not_created(tmp_path: Path) -> None:
    """A lost file raises an error; an empty one is another database."""
    path = tmp_path / "other" / "consensus.db"
    path.parent.mkdir()
    place = f"sqlite:{tmp_path / 'consensus.db'}"
    with tidelog.connect(tmp_path / "lake", create=True, consensus=place) as lake:
        lake.tables.create("t", SCHEMA)

    with tidelog.connect(tmp_path / "lake", consensus=f"sqlite:{path}", read_only=True) as lake:
        with pytest.raises(ConsensusGone, match="does not exist"):
            lake.tables.list()
        assert not path.exists()
        path.touch()
        with pytest.raises(ConsensusGone, match="no entry for this location"):
            lake.tables.list()
    assert tree(path.parent).keys() == {"consensus.db"}
    assert path.stat().st_size == 0


def test_a_postgres_server_gets_only_queries(tmp_path: Path, postgres: PostgresServer) -> None:
    """The server itself refuses changes of this session, also if the wrapper let them through."""
    url = postgres.url()
    with tidelog.connect(tmp_path / "lake", create=True, consensus=url) as lake:
        lake.tables.create("t", SCHEMA, key=["k"]).insert(rows(1, 2))

    with tidelog.connect(tmp_path / "lake", consensus=url, read_only=True) as lake:
        assert lake.table("t").consolidated().num_rows == 2
        with pytest.raises(UsageError, match="read-only"):
            lake.tables.create("u", SCHEMA)

    async def write() -> None:
        place = ConsensusPlace(POSTGRES, url, url)
        memory = MemoryStore()
        below = open_consensus(
            place, location="other", store=memory, clock=SystemClock(), read_only=True
        )
        assert await below.head("key") is None
        await below.compare_and_set("key", SeqNo(1), b"data")

    with pytest.raises(LocationError, match="PostgreSQL"):
        asyncio.run(write())


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file and folder, with its time of change and its bytes."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def shown(found: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    """Return the files without SQLite's shared memory, in which readers note their positions."""
    return {path: told for path, told in found.items() if not path.endswith("-shm")}
