"""Bodies that are cut short in transit: every reader reads again, and none reports damage."""

from __future__ import annotations

import pytest

from kit.lying import CutsShort
from kit.protocols import KINDS, SLOTS, Kind, contents
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object


async def written(kind: Kind) -> MemoryStore:
    """Return a log of several writers, with snapshots and with records past its manifest."""
    store = MemoryStore()
    await kind.make(store)
    for name in ("one", "two"):
        async with kind.writer(store, name=name, batch_bytes=1) as writer:
            for number in range(12):
                await writer.append([b"%d" % number])
    last = kind.writer(store, name="three")  # It crashes without a roll-up.
    await last.append([b"past the manifest"])
    return store


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_log_is_opened_and_appended_to(kind: Kind) -> None:
    """A writer opens a log and appends although each first read is cut short."""
    store = await written(kind)

    async with kind.writer(CutsShort(store), name="four") as writer:
        assert await writer.append([b"more"]) == 26

    assert list((await contents(kind, store)).values())[24:] == [b"past the manifest", b"more"]


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_all_is_read_and_nothing_told(kind: Kind) -> None:
    """A scrub and a scan report no problem: an alert must mean damage in the store."""
    store = await written(kind)

    found = await kind.scrub(cutting := CutsShort(store))
    assert found.problems == []
    assert len(cutting.cuts) > 25
    assert len(await contents(kind, CutsShort(store))) == 25
    reader = kind.reader(CutsShort(store))
    assert sum([len(table) async for table in reader.scan()]) == 25


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_what_lies_damaged_is_told(kind: Kind) -> None:
    """A scrub and a scan report an object that is damaged in the store."""
    store = await written(kind)
    prefix = "epoch/" if kind is SLOTS else "log/"
    key = [key for key in sorted(store.objects) if key.startswith(prefix)][5]  # No fence.
    whole = store.objects[key]
    store.objects[key] = Object(whole.data[:-20], whole.e_tag, whole.modified_us)

    assert {problem.path for problem in (await kind.scrub(store)).problems} == {key}
    with pytest.raises(CorruptionError):
        [table async for table in kind.reader(store).scan()]
