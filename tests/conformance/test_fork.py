"""Forks of slot logs: like wal3's copies, but with shared objects.

| scenario of wal3's | shown by |
| --- | --- |
| a plain copy: equal scrub setsum | test_a_fork_has_what_its_source_has |
| descriptors equal, field by field | test_a_fork_has_what_its_source_has |
| one fragment, deep snapshots, right after making | test_a_fork_has_what_its_source_has |
| large fragments | test_a_fork_costs_no_data |
| after all was collected: offsets and numbers go on | test_a_fork_of_what_was_collected |
| from an offset; from within a fragment | test_a_fork_from_a_position |
| appends to the source, or to the copy, later | test_source_and_forks_go_their_own_ways |
| several independent copies | test_source_and_forks_go_their_own_ways |
| a copy of an empty log races a writer | test_a_fork_during_appends_has_a_prefix |
| (not there) crashes, and races with collections | sim/test_fork.py: test_shared_records_stay_readable_while_a_fork_needs_them |
| (not there) a fork of wal3's form | test_a_log_in_wal3s_form_is_not_forked |
"""  # noqa: E501

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kit.protocols import ALL, CLOCK, SLOTS, WAL3, contents, slot_reader
from tidelog.errors import UsageError
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.logs import Logs
from tidelog.wal.read.head import load_head


def shelf_on(store: Store) -> Logs:
    return Logs(store=store, clock=CLOCK, writer="me")


def log_in(store: Store, name: str) -> Within:
    return Within(store, f"log/{name}")


async def write(store: Store, name: str, count: int, *, size: int = 2) -> None:
    async with SLOTS.writer(log_in(store, name)) as writer:
        for number in range(count):
            await writer.append([b"%s %d-%d" % (name.encode(), number, n) for n in range(size)])


async def make(store: Store, count: int) -> None:
    await SLOTS.make(log_in(store, "a"))
    if count:
        await write(store, "a", count)


async def records(store: Store, name: str) -> dict[int, bytes]:
    return await contents(SLOTS, log_in(store, name))


async def fragments(store: Store, name: str) -> list[Fragment]:
    tree = slot_reader(log_in(store, name)).tree
    return await tree.fragments_of(await tree.manifest())


@pytest.mark.parametrize("count", [0, 1, 17])
async def test_a_fork_has_what_its_source_has(store: Store, count: int) -> None:
    """A fork has the source's records and setsum, and its fragments except for their paths."""
    await make(store, count)
    await shelf_on(store).fork("a", "b")
    assert await records(store, "b") == await records(store, "a")
    one, other = [await SLOTS.scrub(log_in(store, name)) for name in "ab"]
    assert (one.setsum, one.bytes_read) == (other.setsum, other.bytes_read)
    assert other.unnamed == []
    theirs = [replace(f, path=f"../a/{f.path}") for f in await fragments(store, "a")]
    assert await fragments(store, "b") == theirs


async def test_a_fork_costs_no_data() -> None:
    """A fork of a large log takes few requests, and reads and writes no fragment."""
    inner = MemoryStore()
    await make(inner, 0)
    async with SLOTS.writer(log_in(inner, "a")) as writer:
        for _ in range(12):
            await writer.append([bytes(range(256)) * 4_000])
    store = MeteringStore(inner, clock=CLOCK)
    await shelf_on(store).fork("a", "b")
    usage = store.usage()
    assert usage.requests_count < 40
    assert usage.read_bytes + usage.written_bytes < 100_000
    assert await records(inner, "b") == await records(inner, "a")


@pytest.mark.parametrize("start", [1, 7, 8, 33, 34])
async def test_a_fork_from_a_position(start: int) -> None:
    """The fork shares the whole fragment of its start, and has the source's bounds and numbers."""
    store = MemoryStore()
    await make(store, 17)
    await shelf_on(store).fork("a", "b", start=start)
    oldest = start if start % 2 else start - 1
    source, fork = [(await load_head(log_in(store, name))).manifest for name in "ab"]
    assert (fork.oldest, fork.next, fork.next_seq_no) == (oldest, 35, source.next_seq_no)
    whole = await records(store, "a")
    assert await records(store, "b") == {n: whole[n] for n in range(oldest, 35)}
    await write(store, "b", 1)
    assert list(await records(store, "b"))[-2:] == [35, 36]


async def test_a_fork_of_what_was_collected(store: Store) -> None:
    """A fork of a collected log has its newest object, and a fork of that fork too."""
    await make(store, 6)
    log = await shelf_on(store).open("a")
    await log.create_cursor("x", 13)
    await log.collect(keep=ALL, grace_us=1)
    await shelf_on(store).fork("a", "b")
    await shelf_on(store).fork("b", "c")
    for name in "bc":
        assert list(await records(store, name)) == [11, 12]
        await write(store, name, 1)
        assert list(await records(store, name)) == [11, 12, 13, 14]


async def test_source_and_forks_go_their_own_ways(store: Store) -> None:
    """Appends to one log, or a collection of it, change none of the others."""
    await make(store, 3)
    before = await records(store, "a")
    for source, name in ("ab", "ac", "bd"):
        await shelf_on(store).fork(source, name)
    for number, name in enumerate("abcd"):
        await write(store, name, number + 1, size=1)
    log = await shelf_on(store).open("a")
    await log.create_cursor("x", 7)
    await log.collect(keep=ALL, grace_us=1)
    assert list(await records(store, "a")) == [7]
    for number, name in list(enumerate("abcd"))[1:]:
        own = [b"%s %d-0" % (name.encode(), n) for n in range(number + 1)]
        assert list((await records(store, name)).values()) == [*before.values(), *own]


@pytest.mark.parametrize("steps", [0, 3, 6, 12, 25, 60])
async def test_a_fork_during_appends_has_a_prefix(steps: int) -> None:
    """A fork made during appends has a prefix of the source, and accepts appends."""
    store = MemoryStore()
    await make(store, 0)
    writing = asyncio.create_task(write(store, "a", 5))
    for _ in range(steps):
        await asyncio.sleep(0)
    await shelf_on(store).fork("a", "b")
    await writing
    found, whole = await records(store, "b"), await records(store, "a")
    assert len(whole) == 10
    assert found == {n: whole[n] for n in range(1, len(found) + 1)}
    await write(store, "b", 1, size=1)
    assert len(await records(store, "b")) == len(found) + 1


async def test_a_log_in_wal3s_form_is_not_forked(store: Store) -> None:
    """A log in wal3's form cannot be forked: its paths cannot name another log's objects."""
    await WAL3.make(log_in(store, "a"))
    with pytest.raises(UsageError, match="copy it"):
        await shelf_on(store).fork("a", "b")
