"""Logs of one location: forks, which share objects, copies, which do not, and lists of logs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.named_logs import ALL, append, collect_to, contents, log_of, shelf_on, store_with
from kit.protocols import CLOCK
from kit.stores import CrowdedStore, deaths, keys_in
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import (
    ManifestLost,
    NameTaken,
    NoSuchLog,
    PositionCollected,
    TidelogError,
    UsageError,
)
from tidelog.store.keys import Within
from tidelog.store.local.store import LocalStore
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.manifest_protocol.reader import Wal3Reader


@settings(max_examples=10)
@given(
    count=st.integers(0, 25),
    start=st.integers(0, 26),
    cutoff=st.integers(1, 26),
    more=st.integers(0, 6),
)
async def test_a_fork_has_what_it_began_with_and_goes_its_own_way(
    count: int, start: int, cutoff: int, more: int
) -> None:
    """A fork keeps its records; appends and collections of either log do not affect the other."""
    store = await store_with(a=count)
    before = await contents(store, "a")
    if start > max(count, 1):
        with pytest.raises(UsageError, match="no such position"):
            await shelf_on(store).fork("a", "b", start=start)
        return
    await shelf_on(store).fork("a", "b", start=start)
    shared = await contents(store, "b")
    assert shared == {n: body for n, body in before.items() if n >= start}
    await append(store, "a", more)
    await append(store, "b", 3)
    grown = await contents(store, "b")
    assert grown == {**shared, **{count + 1 + n: b"b %d" % n for n in range(3)}}
    await collect_to(store, "a", min(cutoff, count + 1))
    assert await contents(store, "b") == grown
    assert len(await contents(store, "a")) >= min(count, 1) + more - 1
    await collect_to(store, "b", count + 4)
    await (await shelf_on(store).open("a")).collect(keep=ALL, grace_us=0)
    assert list(await contents(store, "b")) == [count + 3]
    assert await (await shelf_on(store).open("a")).pins() == {}


async def test_a_source_deletes_shared_objects_that_no_fork_needs() -> None:
    """The source deletes a shared object when no fork needs it, and not before."""
    store = await store_with(a=20)
    await shelf_on(store).fork("a", "b")
    await shelf_on(store).fork("b", "c")
    await collect_to(store, "a", 18)
    await append(store, "b", 1)
    await collect_to(store, "b", 12)
    kept = await contents(store, "c")
    assert list(kept) == list(range(1, 21)), "the fork of a fork holds on"
    await collect_to(store, "c", 15)
    await collect_to(store, "b", 13)
    await (await shelf_on(store).open("a")).collect(keep=ALL, grace_us=0)
    data = await keys_in(store, "log/a/epoch/")
    slots = {int(key[-24:-8], 16) for key in data}
    assert slots & set(range(2, 13)) == set(), "none of them needs these any more"
    assert set(range(13, 21)) <= slots
    assert list(await contents(store, "c")) == list(range(15, 21))
    assert list(await contents(store, "b")) == list(range(13, 22))
    assert list(await contents(store, "a")) == [18, 19, 20]


@pytest.mark.parametrize("happened", [True, False])
async def test_a_fork_may_die_at_any_request(happened: bool) -> None:
    """A fork that dies at any request leaves a whole fork or none, and a usable name."""
    start = await store_with(a=14)
    visited = 0

    async for store in deaths(
        start, lambda s: shelf_on(s).fork("a", "b", start=3), happened=happened
    ):
        visited += 1
        await collect_to(store, "a", 10)
        try:
            found = await contents(store, "b")
        except NoSuchLog:
            log = await shelf_on(store).open("a")
            if "b" in await log.pins():
                await log.drop_pin("b")
            await log.collect(keep=ALL, grace_us=0)
            await shelf_on(store).fork("a", "b")
            found = await contents(store, "b")
            assert list(found) == list(range(10, 15))
        else:
            assert list(found) == list(range(3, 15))
    assert visited > 8


async def test_what_cannot_be_forked_is_told() -> None:
    """A fork that is not possible raises an error before any write."""
    store = await store_with(a=9)
    await log_of(store, "none", 0)
    await log_of(store, "gone", 3)
    await shelf_on(store).fork("gone", "end", start=0)
    await shelf_on(store).drop("end", grace_us=0)
    await shelf_on(store).drop("gone", grace_us=0)
    await log_of(store, "w", 3, protocol="manifest")
    await collect_to(store, "a", 4)
    keys = set(store.objects)
    shelf = shelf_on(store)
    cases: list[tuple[Callable[[], Awaitable[Log]], type[TidelogError], str]] = [
        (
            lambda: shelf.fork("a", "b-c"),
            UsageError,
            "the name of a fork",
        ),
        (lambda: shelf.fork("a", "b/c"), UsageError, "name of a log"),
        (lambda: shelf.fork("a", "a"), NameTaken, "already"),
        (lambda: shelf.fork("w", "b"), UsageError, "copy it"),
        (lambda: shelf.fork("no", "b"), NoSuchLog, "no log"),
        (lambda: shelf.fork("a", "b", start=2), PositionCollected, "oldest record is 4"),
        (lambda: shelf.fork("a", "b", start=99), UsageError, "no such position"),
        (lambda: shelf.fork("none", "b", start=2), UsageError, "no such position"),
        (lambda: shelf.fork("gone", "b"), NoSuchLog, "was dropped"),
        (lambda: shelf.fork("gone", "b", start=4), NoSuchLog, "was dropped"),
    ]
    for call, kind, match in cases:
        with pytest.raises(kind, match=match):
            await call()
    assert set(store.objects) == keys


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("target", ["slot", "manifest"])
async def test_a_copy_has_the_same_records_and_goes_on(protocol: str, target: str) -> None:
    """A copy between any two protocols keeps positions, times and bodies, and accepts appends."""
    store = await store_with(a=11, protocol=protocol)
    before = await contents(store, "a")
    await shelf_on(store).copy("a", "b", protocol=target)
    assert await contents(store, "b") == before
    await append(store, "b", 2)
    await append(store, "a", 1)
    assert await contents(store, "b") == {**before, 12: b"b 0", 13: b"b 1"}
    await shelf_on(store).copy("b", "c", protocol=protocol, start=5)
    assert list(await contents(store, "c")) == list(range(5, 14))
    source, copy = [await shelf_on(store).open(name) for name in ("a", "b")]
    tables = [[t async for t in log.scan(limit=12)] for log in (source, copy)]
    times = [[r["timestamp_us"] for t in found for r in t.to_pylist()] for found in tables]
    assert times[0] == times[1]


@pytest.mark.parametrize("target", ["slot", "manifest"])
async def test_a_copy_of_nothing_goes_on_where_the_source_does(target: str) -> None:
    """A copy without records continues at the next position of its source."""
    store = await store_with(a=0)
    await shelf_on(store).copy("a", "b", protocol=target)
    assert await contents(store, "b") == {}
    await append(store, "b", 1)
    assert await contents(store, "b") == {1: b"b 0"}
    await append(store, "a", 7)
    await shelf_on(store).copy("a", "c", protocol=target, start=8)
    await append(store, "c", 1)
    assert list(await contents(store, "c")) == [8]


async def test_records_of_many_times_become_fragments_of_one() -> None:
    """A copy to wal3's form splits records by time, because its fragments have one time."""
    store = MemoryStore()
    log = await shelf_on(store).create("a", batching=Batching(interval_us=100_000))
    async with log:
        times = [7, 7, 3, 9, 9, 9]
        calls = [log.append([b"%d" % t], timestamp_us=t) for t in times]
        await asyncio.gather(*calls)
    await shelf_on(store).copy("a", "b", protocol="manifest")
    found = await shelf_on(store).open("b")
    rows = [row async for table in found.scan() for row in table.to_pylist()]
    assert [row["timestamp_us"] for row in rows] == times
    assert 3 <= (await found.scrub()).fragments <= 4


async def test_a_slot_log_is_exported_as_wal3_reads_it() -> None:
    """An exported slot log reads as a wal3 log. A folder without a log cannot be adopted."""
    store, back = MemoryStore(), MemoryStore()
    await log_of(store, "a", 5)
    await shelf_on(store).export("a", back, start=2)
    rows = [r async for t in Wal3Reader(store=back, clock=CLOCK).scan() for r in t.to_pylist()]
    assert [(row["position"], row["body"]) for row in rows] == [
        (n, b"a %d" % (n - 1)) for n in range(2, 6)
    ]
    with pytest.raises(NameTaken):
        await shelf_on(store).export("a", back)
    with pytest.raises(NoSuchLog):
        await shelf_on(store).adopt(MemoryStore(), "b")
    with pytest.raises(UsageError, match="slot protocol"):
        await shelf_on(store).adopt(Within(store, "log/a"), "b")


@pytest.mark.parametrize("hostile", ["\U0010ffff\U0010ffff", "manifest/MANIFEST/\U0010ffff", "x"])
async def test_no_file_in_a_logs_folder_keeps_the_list_of_logs_from_ending(hostile: str) -> None:
    """A list of logs ends, although a file name may sort after its folder's name."""
    store = MemoryStore()
    for name in ("a", "a-b", "a0", "b"):
        await log_of(store, name, 1)
    await store.put(f"log/a/{hostile}", b"")
    await store.put("log/a", b"a file, not a folder")

    async with asyncio.timeout(5):
        assert await shelf_on(store).list() == ["a", "a-b", "a0", "b"]


async def test_a_log_without_its_manifest_is_not_said_to_be_nothing() -> None:
    """An opened log without its manifest can be rebuilt; a wrong name gets a hint."""
    store = await store_with(a=1)
    await store.delete(["log/a/manifest/MANIFEST"])

    with pytest.raises(NoSuchLog, match="its manifest is missing: run 'tidelog log rebuild a'"):
        await shelf_on(store).open("a")
    with pytest.raises(NoSuchLog, match="'tidelog log list' lists the logs"):
        await shelf_on(store).open("b")
    assert await shelf_on(store).list(lost=True) == ["a"]
    assert await shelf_on(store).list() == []
    await shelf_on(store).rebuild("a")
    assert await shelf_on(store).list(lost=True) == []
    assert list(await contents(store, "a")) == [1]


async def test_a_log_in_wal3s_form_without_its_manifest_is_listed() -> None:
    """A log in wal3's form without its manifest is listed as lost, for its owner."""
    store = await store_with(a=1, protocol="manifest")
    await store.delete(["log/a/manifest/MANIFEST"])

    assert await shelf_on(store).list(lost=True) == ["a"]
    with pytest.raises(ManifestLost, match="restore manifest/MANIFEST"):
        await shelf_on(store).open("a")


async def test_text_is_no_id_of_a_stream() -> None:
    """A text as a stream id raises UsageError, and the message asks for encoded bytes."""
    log = await shelf_on(MemoryStore()).create("a")
    text: Any = "eu"

    with pytest.raises(UsageError, match="bytes, not str: encode it first"):
        await log.open_stream(text)
    with pytest.raises(UsageError, match="bytes, not str: encode it first"):
        await log.append([b"1"], stream=text)


async def test_logs_are_named_by_one_look_at_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of thousands of logs in a local directory looks at the directory once."""
    store = MeteringStore(LocalStore(tmp_path, clock=CLOCK), clock=CLOCK)  # Like in a location.
    names = [f"log_{number:02}" for number in range(10)]
    for name in names:
        await store.put(f"log/{name}/{MANIFEST}", b"")
    looks: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> Any:
        looks.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)

    assert await shelf_on(store).list() == names
    assert looks == [f"{tmp_path}/log/"]


async def test_logs_are_looked_at_side_by_side() -> None:
    """A list of logs checks them concurrently, because each takes a request."""
    store = MemoryStore()
    for number in range(20):
        await store.put(f"log/log_{number:02}/{MANIFEST}", b"")
    crowd = CrowdedStore(store, clock=CLOCK, prefix="log/")

    assert len(await shelf_on(crowd.store).list()) == 20
    assert crowd.most == AT_ONCE_MAX
