"""Copies of logs, in the same protocol and between the two.

| scenario of wal3's | shown by |
| --- | --- |
| a plain copy: equal scrub setsum | test_a_copy_has_what_its_source_has |
| equal descriptors, field by field | test_a_copy_in_wal3s_form_is_described_alike |
| one fragment, deep snapshots, right after making | test_a_copy_has_what_its_source_has |
| large fragments | test_large_fragments_are_copied |
| after all was collected: offsets and numbers go on | test_a_copy_of_what_was_collected |
| from an offset; from within a fragment | test_a_copy_from_a_position |
| appends to the source, or to the copy, later | test_source_and_copies_go_their_own_ways |
| several independent copies | test_source_and_copies_go_their_own_ways |
| a copy of an empty log races a writer | test_a_copy_during_appends_has_a_prefix |
| (not there) a copy races a collection | test_a_copy_during_a_collection_is_complete_or_an_error |
| all bytes are Chroma's | wal/test_copy.py: test_a_copy_is_chromas_to_the_byte |
| a fork of the service, with its cursor | not ours: cursors are a log's own; those of Chroma's are adopted with it |
| bootstrap with 1000 records at 42; with none | not ours: a log begins at 1; a copy from a position goes on from there |
"""  # noqa: E501

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from kit.protocols import ALL, CLOCK, KINDS, WAL3, Kind, contents, wal3_reader
from tidelog.errors import NameTaken, PositionCollected, UsageError
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.logs import Logs
from tidelog.wal.read.head import load_head

MIB = 1024 * 1024
TO = pytest.mark.parametrize("to", KINDS, ids=lambda kind: f"to {kind}")


@dataclass(frozen=True, slots=True)
class Place:
    """The logs of one store by name; ``kinds`` has the protocol of each."""

    store: Store
    kinds: dict[str, Kind]

    def log(self, name: str) -> Within:
        return Within(self.store, f"log/{name}")

    @property
    def shelf(self) -> Logs:
        return Logs(store=self.store, clock=CLOCK, writer="me")

    async def write(self, name: str, count: int, *, size: int = 2) -> None:
        """Append ``count`` fragments of ``size`` records each."""
        async with self.kinds[name].writer(self.log(name)) as writer:
            for number in range(count):
                await writer.append([b"%s %d-%d" % (name.encode(), number, n) for n in range(size)])

    async def copy(self, name: str, *, start: int = 0) -> None:
        await self.shelf.copy("a", name, protocol=self.kinds[name].name, start=start)

    async def contents(self, name: str) -> dict[int, bytes]:
        return await contents(self.kinds[name], self.log(name))


async def place_of(store: Store, kind: Kind, to: Kind, count: int) -> Place:
    """Return a place with a log ``a`` of ``count`` fragments of two records."""
    place = Place(store, {"a": kind, **dict.fromkeys("bcd", to)})
    await kind.make(place.log("a"))
    if count:
        await place.write("a", count)
    return place


@TO
@pytest.mark.parametrize("count", [0, 1, 17])
async def test_a_copy_has_what_its_source_has(
    store: Store, kind: Kind, to: Kind, count: int
) -> None:
    """A copy has all records and their setsum, and no other object; the source is unchanged."""
    many = 17 if isinstance(store, MemoryStore) else 7
    place = await place_of(store, kind, to, min(count, many))
    before = await place.contents("a")
    await place.copy("b")
    assert await place.contents("b") == await place.contents("a") == before
    one, other = await kind.scrub(place.log("a")), await to.scrub(place.log("b"))
    assert (one.records, one.problems) == (other.records, other.problems)
    assert one.setsum == other.setsum or kind is not to, "of streams wal3's sums know nothing"
    assert other.unnamed == []
    for name in ("a", "b"):
        with pytest.raises(NameTaken):
            await place.copy(name)


@pytest.mark.parametrize("kind", [WAL3], ids=str)
async def test_a_copy_in_wal3s_form_is_described_alike(store: Store, kind: Kind) -> None:
    """The copy's fragments equal the source's (slot objects differ, as they name their epoch)."""
    place = await place_of(store, kind, kind, 17)
    await place.copy("b")
    source, target = (wal3_reader(place.log(name)) for name in "ab")
    assert await source.fragments() == await target.fragments()


@TO
async def test_large_fragments_are_copied(store: Store, kind: Kind, to: Kind) -> None:
    """Fragments above the size of a multipart put are copied."""
    place = await place_of(store, kind, to, 0)
    async with kind.writer(place.log("a")) as writer:
        await writer.append([b"x" * (6 * MIB)])
        await writer.append([b"y" * 100, b"z" * MIB])
    await place.copy("b")
    assert await place.contents("b") == await place.contents("a")


@TO
@pytest.mark.parametrize("start", [1, 7, 8, 33, 34, 35])
async def test_a_copy_from_a_position(kind: Kind, to: Kind, start: int) -> None:
    """The copy begins at the position, in wal3's form with the whole fragment of the position."""
    place = await place_of(MemoryStore(), kind, to, 17)
    whole = await place.contents("a")
    await place.copy("b", start=start)
    is_split = kind is to is WAL3 and start % 2 == 0
    found = await place.contents("b")
    assert found == {n: body for n, body in whole.items() if n >= start - is_split}
    manifest = (await load_head(place.log("b"))).manifest
    assert (manifest.oldest, manifest.next) == (start - is_split, 35)
    async with to.writer(place.log("b")) as writer:
        assert await writer.append([b"new"]) == 35
    with pytest.raises(UsageError, match="no such position"):
        await place.copy("c", start=36)


@TO
async def test_a_copy_of_what_was_collected(store: Store, kind: Kind, to: Kind) -> None:
    """A log without records can be copied, and the copy continues at the source's position."""
    place = await place_of(store, kind, to, 6)
    log = await place.shelf.open("a")
    await log.create_cursor("x", 13)
    await log.collect(keep=ALL, grace_us=1)
    with pytest.raises(PositionCollected):
        await place.copy("b", start=3)
    await place.copy("b", start=13)
    assert await place.contents("b") == {}
    async with to.writer(place.log("b")) as writer:
        assert await writer.append([b"new"]) == 13
    assert await place.contents("b") == {13: b"new"}
    await place.copy("c")
    assert await place.contents("c") == await place.contents("a")


@TO
async def test_source_and_copies_go_their_own_ways(store: Store, kind: Kind, to: Kind) -> None:
    """Records that are appended to the source or to a copy appear in no other log."""
    place = await place_of(store, kind, to, 3)
    before = await place.contents("a")
    for name in "bcd":
        await place.copy(name)
    for number, name in enumerate("abcd"):
        await place.write(name, number + 1, size=1)
    for number, name in enumerate("abcd"):
        own = [b"%s %d-0" % (name.encode(), n) for n in range(number + 1)]
        assert list((await place.contents(name)).values()) == [*before.values(), *own]


@TO
@pytest.mark.parametrize("steps", [0, 3, 6, 12, 25])
async def test_a_copy_during_appends_has_a_prefix(kind: Kind, to: Kind, steps: int) -> None:
    """A copy made during appends has a prefix of the source, and accepts appends."""
    place = await place_of(MemoryStore(), kind, to, 0)
    writing = asyncio.create_task(place.write("a", 5))
    for _ in range(steps):
        await asyncio.sleep(0)
    await place.copy("b")
    await writing
    found, whole = await place.contents("b"), await place.contents("a")
    assert len(whole) == 10
    assert found == {n: whole[n] for n in range(1, len(found) + 1)}
    async with to.writer(place.log("b")) as writer:
        assert await writer.append([b"mine"]) == len(found) + 1


@TO
@pytest.mark.parametrize("steps", [2, 9, 30, 80])
async def test_a_copy_during_a_collection_is_complete_or_an_error(
    kind: Kind, to: Kind, steps: int
) -> None:
    """A copy that races a collection is complete, or raises PositionCollected; never a part."""
    place = await place_of(MemoryStore(), kind, to, 17)
    whole = await place.contents("a")
    log = await place.shelf.open("a")
    await log.create_cursor("x", 21)
    copying = asyncio.create_task(place.copy("b"))
    for _ in range(steps):
        await asyncio.sleep(0)
    await log.collect(keep=ALL, grace_us=1)
    try:
        await copying
    except PositionCollected:
        # In wal3's form the aborted copy keeps its name, because its fragments have fixed paths.
        await place.copy("c", start=21)
        assert list(await place.contents("c")) == list(range(21, 35))
    else:
        found = await place.contents("b")
        assert found == {n: whole[n] for n in range(min(found), 35)}
