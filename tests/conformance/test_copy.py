"""Copies.

| scenario of wal3's | shown by |
| --- | --- |
| a plain copy: equal scrub setsum, equal descriptors | test_a_copy_has_what_its_source_has |
| one fragment, deep snapshots, right after making | test_a_copy_has_what_its_source_has |
| large fragments | test_large_fragments_are_copied |
| after all was collected: offsets and numbers go on | test_a_copy_of_what_was_collected |
| from an offset; from within a fragment | test_a_copy_from_a_position |
| appends to the source, or to the copy, later | test_source_and_copies_go_their_own_ways |
| several independent copies | test_source_and_copies_go_their_own_ways |
| a copy of an empty log races a writer | test_a_copy_beside_a_writer |
| bytes and all are Chroma's | wal/test_copy.py: test_a_copy_is_chromas_to_the_byte |
| a fork of the service, with its cursor | not yet: forks are written elsewhere |
| destroy: dangling fragments, unknown objects | not yet: destroy is written elsewhere |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from logs import CLOCK, WAL3, Kind, contents, wal3_reader
from tidelog.store.port import Store
from tidelog.wal.collection import Keep
from tidelog.wal.collector import Collector
from tidelog.wal.copy import copy_log
from tidelog.wal.cursors import Cursors

pytestmark = pytest.mark.parametrize("kind", [WAL3], ids=str)
MIB = 1024 * 1024


async def write(kind: Kind, store: Store, count: int, *, size: int = 2) -> None:
    """Append fragments of so many records each."""
    await kind.make(store)
    async with kind.writer(store) as writer:
        for number in range(count):
            await writer.append([b"%d-%d" % (number, n) for n in range(size)])


@pytest.mark.parametrize("count", [0, 1, 3, 17])
def test_a_copy_has_what_its_source_has(
    kind: Kind, new_store: Callable[[], Store], count: int
) -> None:
    """Records, setsum, and each fragment as it is described."""

    async def work() -> None:
        source, target = new_store(), new_store()
        await write(kind, source, count)
        await copy_log(wal3_reader(source), target)
        assert await contents(kind, target) == await contents(kind, source)
        one, other = await kind.scrub(source), await kind.scrub(target)
        assert (one.setsum, one.bytes_read) == (other.setsum, other.bytes_read)
        assert await wal3_reader(source).fragments() == await wal3_reader(target).fragments()
        assert other.unnamed == []

    asyncio.run(work())


def test_large_fragments_are_copied(kind: Kind, new_store: Callable[[], Store]) -> None:
    """Above the size at which S3's clients begin to put in parts."""

    async def work() -> None:
        source, target = new_store(), new_store()
        await kind.make(source)
        async with kind.writer(source) as writer:
            await writer.append([b"x" * (6 * MIB)])
            await writer.append([b"y" * 100, b"z" * MIB])
        await copy_log(wal3_reader(source), target)
        assert await contents(kind, target) == await contents(kind, source)

    asyncio.run(work())


@pytest.mark.parametrize("start", [1, 7, 8, 20, 33, 34, 35])
def test_a_copy_from_a_position(kind: Kind, new_store: Callable[[], Store], start: int) -> None:
    """A fragment in which it lies is copied whole; the bounds and numbers are the source's."""

    async def work() -> None:
        source, target = new_store(), new_store()
        await write(kind, source, 17)
        copied = await copy_log(wal3_reader(source), target, start=start)
        oldest = start if start % 2 else start - 1
        assert (copied.oldest, copied.next, copied.next_seq_no) == (oldest, 35, 18)
        found, whole = await contents(kind, target), await contents(kind, source)
        assert found == {n: body for n, body in whole.items() if n >= oldest}
        async with kind.writer(target) as writer:
            assert await writer.append([b"new"]) == 35

    asyncio.run(work())


def test_a_copy_of_what_was_collected(kind: Kind, new_store: Callable[[], Store]) -> None:
    """Of nothing there is a copy too, and it goes on where the source does."""

    async def work() -> None:
        source, target = new_store(), new_store()
        await write(kind, source, 6)
        await Cursors(store=source, clock=CLOCK, writer="me").create("x", 13)
        keep = Keep(share_max=1)
        await Collector(store=source, clock=CLOCK, writer="gc", keep=keep, grace_us=1).collect()
        copied = await copy_log(wal3_reader(source), target)
        assert (copied.oldest, copied.next, copied.next_seq_no) == (13, 13, 7)
        async with kind.writer(target) as writer:
            assert await writer.append([b"new"]) == 13
        assert await contents(kind, target) == {13: b"new"}

    asyncio.run(work())


def test_source_and_copies_go_their_own_ways(kind: Kind, new_store: Callable[[], Store]) -> None:
    """What is appended to one is in no other."""

    async def work() -> None:
        source, *copies = (new_store() for _ in range(4))
        await write(kind, source, 5)
        before = await contents(kind, source)
        for copy in copies:
            await copy_log(wal3_reader(source), copy)
        for number, log in enumerate((source, *copies)):
            async with kind.writer(log) as writer:
                for _ in range(number + 1):
                    await writer.append([b"log %d" % number])
        for number, log in enumerate((source, *copies)):
            own = [b"log %d" % number] * (number + 1)
            assert list((await contents(kind, log)).values()) == [*before.values(), *own]

    asyncio.run(work())


@pytest.mark.parametrize("steps", [0, 3, 6, 12, 25])
def test_a_copy_beside_a_writer(kind: Kind, new_store: Callable[[], Store], steps: int) -> None:
    """It has some first part of the source, whole, and goes on by itself."""

    async def work() -> None:
        source, target = new_store(), new_store()
        await kind.make(source)

        async def append() -> None:
            async with kind.writer(source) as writer:
                for number in range(5):
                    await writer.append([b"%d" % number])

        writing = asyncio.create_task(append())
        for _ in range(steps):
            await asyncio.sleep(0)
        await copy_log(wal3_reader(source), target)
        await writing
        found, whole = await contents(kind, target), await contents(kind, source)
        assert len(whole) == 5
        assert found == {n: whole[n] for n in range(1, len(found) + 1)}
        async with kind.writer(target) as writer:
            assert await writer.append([b"mine"]) == len(found) + 1

    asyncio.run(work())
