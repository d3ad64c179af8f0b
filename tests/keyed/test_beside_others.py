"""Keyed logs under two processes that act concurrently, or one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from tidelog import aio
from tidelog.errors import CorruptionError, LocationError, LogFull, NameTaken
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.states.transition import decide_checkpoint
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore
from tidelog.wal.admin.fork import Fork
from tidelog.wal.format.manifest import MANIFEST, decode_manifest, encode_manifest


async def test_who_comes_second_to_a_fork_leaves_what_holds_it(tmp_path: Path) -> None:
    """The loser of a race to fork must not release the runs that the winner reads."""
    url = f"file://{tmp_path}/lake"
    one, two = await aio.connect(url, create=True), await aio.connect(url)
    source = await one.keyed.create("source")
    for _ in range(2):
        await source.append([(b"k", b"v")] * 5)
        await source.compact(full=True)
    found = await asyncio.gather(
        one.keyed.fork("source", "fork"), two.keyed.fork("source", "fork"), return_exceptions=True
    )
    assert [type(each) for each in found].count(NameTaken) == 1
    await source.append([(b"k", b"v")])
    await source.compact(full=True)
    await source.collect(after_us=0)
    fork = await (await aio.connect(url)).keyed.open("fork")
    assert (await fork.scan(b"k").to_arrow()).num_rows == 10


async def test_what_is_ordered_is_read_after_another_has_appended(tmp_path: Path) -> None:
    """A handle that takes over reads the other writer's earlier records, then its own."""
    url = f"file://{tmp_path}/lake"
    one, two = await aio.connect(url, create=True), await aio.connect(url)
    first = await one.keyed.create("orders")
    second = await two.keyed.open("orders")
    assert not (await second.scan(b"k").to_arrow()).num_rows
    await first.append([(b"k", b"theirs")])
    await second.append([(b"k", b"mine")], durable=False)
    found = await second.scan(b"k").to_arrow()
    assert found.column("value").to_pylist() == [b"theirs", b"mine"]


async def test_checkpoints_that_a_forker_left_go_with_the_fork(tmp_path: Path) -> None:
    """A dead forker's checkpoint goes with a collection of the source, or the fork's drop."""
    url = f"file://{tmp_path}/lake"
    lake = await aio.connect(url, create=True)
    source = await lake.keyed.create("source")
    await source.append([(b"k", b"v")] * 5)
    await source.compact(full=True)
    fork = await lake.keyed.fork("source", "fork")

    async def leave(name: str) -> None:
        await source.state_handle.machine.commit(
            partial(decide_checkpoint, name=name, next_sequence=6, at_us=0, fork="fork")
        )

    await leave("fork.fork.left")
    await source.collect(after_us=0)
    left = [one.name for one in await source.checkpoints()]
    assert len(left) == 1
    assert left[0].startswith("fork.fork.")
    assert left != ["fork.fork.left"]
    assert (await fork.scan(b"k").to_arrow()).num_rows == 5
    await leave("fork.fork.left")
    await fork.close()
    await lake.keyed.drop("fork")
    assert await source.checkpoints() == []
    await source.close()
    await lake.keyed.drop("source")


async def test_a_fork_that_failed_is_made_by_the_next_call(tmp_path: Path) -> None:
    """A failed attempt to fork releases its hold on the source at once."""
    url = f"file://{tmp_path}/lake"
    lake = await aio.connect(url, create=True)
    source = await lake.keyed.create("source")
    await source.append([(b"k", b"v")] * 5)
    away = patch.object(Fork, "make", side_effect=LocationError("the store is away"))
    with away, pytest.raises(LocationError):
        await lake.keyed.fork("source", "fork")
    assert not await source.checkpoints()
    fork = await lake.keyed.fork("source", "fork")
    assert len(await source.checkpoints()) == 1
    assert (await fork.scan(b"k").to_arrow()).num_rows == 5


async def test_a_table_for_which_there_is_no_room_is_told_so(tmp_path: Path) -> None:
    """The error states how many rows the log accepted. The caller appends the rest later."""
    lake = await aio.connect(f"file://{tmp_path}/lake", create=True)
    await (await lake.keyed.create("log")).close()
    small = aio.Batching(pending_bytes=1_000, interval_us=300_000)
    log = await lake.keyed.open("log", batching=small, maintenance=False)
    table = pa.table({"key": [b"k"] * 100, "value": [b"v" * 100] * 100})

    async def fill() -> None:
        for _ in range(50):
            await log.append_arrow(table, durable=False, timeout_us=0)

    with pytest.raises(LogFull) as full:
        await fill()
    assert full.value.facts == {"rows_taken": 0}
    await log.close()


async def test_a_handle_that_writes_tells_of_what_others_have_changed(tmp_path: Path) -> None:
    """Each handle shows the checkpoints, segments and settings of other processes."""
    url = f"file://{tmp_path}/lake"
    one, two = await aio.connect(url, create=True), await aio.connect(url)
    log = await one.keyed.create("log")
    await log.append([(b"k", b"v")])
    other = await two.keyed.open("log")
    await other.create_checkpoint("theirs")
    await other.seal()
    await other.retain(aio.Retention(segments=9))

    assert [found.name for found in await log.checkpoints()] == ["theirs"]
    assert [found.limit for found in await log.segments()] == [2]
    assert (await log.describe()).retention == aio.Retention(segments=9)
    await log.append([(b"k", b"v")])
    await log.close()


async def test_a_retirement_uses_the_settings_at_its_commit(tmp_path: Path) -> None:
    """A retirement applies the settings at the time of its commit."""
    url = f"file://{tmp_path}/lake"
    one, two = await aio.connect(url, create=True), await aio.connect(url)
    log = await one.keyed.create("log", retention=aio.Retention(segments=1))
    await log.append([(b"k", b"v")])
    await log.seal()
    other = await two.keyed.open("log")

    async def meanwhile(*, full: bool = False) -> int:
        written = await KeyedLog.compact(log, full=full)
        await other.retain(aio.Retention(segments=9))
        return written

    with patch.object(log, "compact", meanwhile):
        assert await log.retire() == 0
    assert (await log.scan(b"k").to_arrow()).num_rows == 1
    await log.close()


async def test_a_scan_decodes_the_manifest_only_if_it_has_changed() -> None:
    """A manifest may list thousands of fragments, and a reader asks for it in each scan."""
    location = await open_location("memory://", create=True, store=MemoryStore())
    log = await location.keyed.create("orders")
    await log.append([(b"k", b"one")])
    await log.close()
    reader = await location.keyed.reader("orders", refresh_us=0)
    with patch("tidelog.wal.read.head.decode_manifest", side_effect=decode_manifest) as decoded:
        for _ in range(3):
            assert (await reader.scan(b"k").to_arrow()).num_rows == 1
        assert decoded.call_count == 0  # The opener has decoded it.
        log = await location.keyed.open("orders")
        await log.append([(b"k", b"two")])
        await log.close()
        decoded.reset_mock()
        assert (await reader.scan(b"k").to_arrow()).num_rows == 2
        assert decoded.call_count == 1
        assert (await reader.scan(b"k").to_arrow()).num_rows == 2
        assert decoded.call_count == 1


async def test_a_manifest_that_contradicts_itself_fails_each_scan() -> None:
    """The opener keeps only a manifest without faults, so that a scan reports the fault."""
    store = MemoryStore()
    location = await open_location("memory://", create=True, store=store)
    log = await location.keyed.create("orders")
    await log.append([(b"k", b"one")])
    await log.close()
    path = f"keylog/orders/{MANIFEST}"
    manifest = decode_manifest((await store.get(path)).data)
    await store.put(path, encode_manifest(replace(manifest, acc_bytes=manifest.acc_bytes + 1)))
    reader = await location.keyed.reader("orders", refresh_us=0)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="acc_bytes"):
            await reader.scan(b"k").to_arrow()
