"""Copies of logs: the same records at the same positions, with no shared objects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.goldens import NAMES, expected, golden, objects
from kit.protocols import WAL3, collect_to, contents, wal3_reader
from kit.stores import dying, keys_in
from kit.wal3_logs import append, log_of
from tidelog.errors import (
    CorruptionError,
    LocationError,
    NameTaken,
    NoSuchLog,
    PositionCollected,
    TidelogError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object
from tidelog.testing import RecordedStore
from tidelog.wal.admin.copy import copy_log
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.manifest import MANIFEST


def bytes_of(store: MemoryStore) -> dict[str, bytes]:
    return {key: found.data for key, found in store.objects.items()}


async def test_a_copy_is_chromas_to_the_byte() -> None:
    """A copy has exactly the objects and bytes of a copy by Chroma."""
    target = MemoryStore()
    await copy_log(wal3_reader(await golden("b_snapshots")), target)
    assert bytes_of(target) == objects("d_copy")


@pytest.mark.parametrize("name", NAMES)
async def test_chromas_logs_are_copied_and_go_on(name: str) -> None:
    """A log in any state that Chroma leaves is copied with its next position and number."""
    source, target = await golden(name), MemoryStore()
    before = await contents(WAL3, source)
    copied = await copy_log(wal3_reader(source), target)
    assert await contents(WAL3, target) == before
    wanted = expected(name)
    assert (copied.next, copied.next_seq_no) == (wanted["next"], wanted["next_seq_no"])
    await append(target, [2, 1])
    added = range(wanted["next"], wanted["next"] + 3)
    assert list(await contents(WAL3, target)) == [*before, *added]
    assert bytes_of(source) == objects(name), "the source is as it was"


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=16),
    cut=st.integers(0, 70),
    start=st.integers(0, 70),
)
async def test_any_part_of_any_log_is_copied(sizes: list[int], cut: int, start: int) -> None:
    """A copy starts at the fragment of its start; a collected start raises PositionCollected."""
    source, target = await log_of(sizes), MemoryStore()
    next_ = 1 + sum(sizes)
    await collect_to(source, max(1, min(cut, next_)))
    before, oldest = await contents(WAL3, source), (await wal3_reader(source).manifest()).oldest
    if 0 < start < oldest:
        with pytest.raises(PositionCollected):
            await copy_log(wal3_reader(source), target, start=start)
        assert await keys_in(target) == []
        return
    copied = await copy_log(wal3_reader(source), target, start=start)
    found = await contents(WAL3, target)
    assert found == {n: body for n, body in before.items() if n >= copied.oldest}
    assert copied.oldest <= max(start, oldest)
    assert copied.next == next_
    held = [n for n in before if n >= start]
    assert set(held) <= set(found)
    assert len(found) - len(held) < 4, "no fragment more than is needed"
    await append(target, [1] * 6)
    await collect_to(target, next_ + 3)
    assert list(await contents(WAL3, target)) == list(range(next_ + 3, next_ + 6))


async def test_the_manifest_is_written_last() -> None:
    """A copy writes the manifest last, so that no process can open half a copy."""
    target = RecordedStore(MemoryStore())
    await copy_log(wal3_reader(await log_of([2] * 9)), target)
    puts = [record.key for record in target.records if record.op == "put"]
    assert puts[-1] == MANIFEST
    assert len(puts) == 10


@pytest.mark.parametrize("happened", [True, False])
async def test_a_copy_that_was_broken_off_is_taken_up(happened: bool) -> None:
    """A copy that stopped at any request can be made again, also from a source that has grown."""
    source, whole = await log_of([2] * 7), RecordedStore(MemoryStore())
    await copy_log(wal3_reader(source), whole)
    for number in range(len(whole.records)):
        target = MemoryStore()

        with pytest.raises(LocationError):
            await copy_log(wal3_reader(source), dying(target, number, happened=happened))
        if MANIFEST in target.objects:
            with pytest.raises(NameTaken):
                await copy_log(wal3_reader(source), target)
        else:
            await append(source, [1])
            await copy_log(wal3_reader(source), target)
        assert (await contents(WAL3, target)).items() <= (await contents(WAL3, source)).items()
        assert len(await contents(WAL3, target)) >= 14


async def test_nothing_is_overwritten_or_mixed() -> None:
    """A copy never overwrites an object and never includes a foreign fragment."""
    source = await log_of([2] * 4)
    for key, data in (
        (MANIFEST, b"{}"),
        (fragment_path(3), b"other"),
        (fragment_path(5), b"other"),
    ):
        target = MemoryStore()
        await target.put(key, data)
        with pytest.raises(NameTaken, match="empty location"):
            await copy_log(wal3_reader(source), target)
        assert (await target.get(key)).data == data
        assert key == MANIFEST or MANIFEST not in target.objects
    with pytest.raises(NoSuchLog):
        await copy_log(wal3_reader(MemoryStore()), MemoryStore())


class RacingStore(MemoryStore):
    """A log that is collected, or loses a fragment, during a read."""

    harm: str = "collected"

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        if key == fragment_path(2):
            harm, self.harm = self.harm, ""
            if harm == "collected":
                await collect_to(self, 9)
            elif harm:
                await self.delete([key])
        return await MemoryStore.get(self, key, start=start, limit=limit)


@pytest.mark.parametrize(
    ("harm", "error"), [("collected", PositionCollected), ("lost", CorruptionError)]
)
async def test_a_source_that_loses_records_meanwhile_is_not_copied(
    harm: str, error: type[TidelogError]
) -> None:
    """A copy whose source loses records during it fails: half a log must not look whole."""
    source = RacingStore(objects=dict((await log_of([2] * 7)).objects), puts_count=10_000)
    source.harm = harm
    target = MemoryStore()
    with pytest.raises(error):
        await copy_log(wal3_reader(source), target)
    assert MANIFEST not in target.objects


async def test_a_broken_fragment_is_not_copied() -> None:
    """A copy with a broken fragment fails: it would hide when the damage happened."""
    source, target = await log_of([2] * 4), MemoryStore()
    data = (await source.get(fragment_path(2))).data
    await source.put(fragment_path(2), data[:-1] + b"?")
    with pytest.raises(CorruptionError):
        await copy_log(wal3_reader(source), target)
    assert MANIFEST not in target.objects
