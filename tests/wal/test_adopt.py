"""Adoption of a log that wal3 wrote: the copy has its records and its cursors at once."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kit.goldens import NAMES, objects
from kit.named_logs import shelf_on
from kit.protocols import CLOCK, cursors_on
from kit.stores import dying
from tidelog.errors import CorruptionError, LocationError, NameTaken, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.testing import RecordedStore
from tidelog.wal.format.cursor import Cursor, encode_cursor
from tidelog.wal.manifest_protocol.reader import Wal3Reader


async def test_a_log_that_chroma_wrote_is_adopted_and_given_back() -> None:
    """An adopted log has its source's records and cursors; an export has the same bytes."""
    for name in NAMES:
        source, store = MemoryStore(), MemoryStore()
        for key, data in objects(name).items():
            await source.put(key, data)
        theirs = [t async for t in Wal3Reader(store=source, clock=CLOCK).scan()]
        log = await shelf_on(store).adopt(source, "mine")
        ours = [t async for t in log.scan()]
        assert [r["body"] for t in ours for r in t.to_pylist()] == [
            r["body"] for t in theirs for r in t.to_pylist()
        ]
        assert (await log.scrub()).problems == []
        cursors = [key for key in objects(name) if key.startswith("cursor/")]
        assert len((await log.cursors()).cursors) == len(cursors)
        back = MemoryStore()
        await shelf_on(store).export("mine", back)
        fragments = {k: v for k, v in objects(name).items() if k in back.objects}
        assert all(
            back.objects[key].data == data
            for key, data in fragments.items()
            if key.startswith("log/")
        )
        again = [t async for t in Wal3Reader(store=back, clock=CLOCK).scan()]
        assert [r["body"] for t in again for r in t.to_pylist()] == [
            r["body"] for t in theirs for r in t.to_pylist()
        ]


@pytest.mark.parametrize("happened", [True, False])
async def test_an_adoption_may_die_at_any_request(happened: bool) -> None:
    """An adoption that dies at any request leaves no log without a cursor of its source."""
    source = MemoryStore()
    for key, data in objects("b_snapshots").items():
        await source.put(key, data)
    for number, position in enumerate((2, 9, 5)):
        await cursors_on(source, "them").create(f"c{number}", position)
    theirs = (await cursors_on(source, "them").list()).cursors
    wanted = {name: cursor.position for name, cursor in theirs.items()}
    counted = RecordedStore(MemoryStore())
    await shelf_on(counted).adopt(source, "a")
    for number in range(len(counted.records)):
        store = MemoryStore()

        with suppress(LocationError):
            await shelf_on(dying(store, number, happened=happened)).adopt(source, "a")
        with suppress(NameTaken):
            await shelf_on(store).adopt(source, "a")
        log = await shelf_on(store).open("a")
        found = (await log.cursors()).cursors
        assert {name: cursor.position for name, cursor in found.items()} == wanted


async def test_cursors_that_cannot_be_carried_stop_an_adoption_before_it_begins() -> None:
    """An adoption with a cursor that it cannot copy stores nothing: its records would be lost."""
    source, store = MemoryStore(), MemoryStore()
    for key, data in objects("b_snapshots").items():
        await source.put(key, data)
    data = encode_cursor(Cursor(position=2, epoch_us=1, writer="them"))
    await source.put(f"cursor/{'z' * 140}.json", data)
    with pytest.raises(UsageError, match="too long"):
        await shelf_on(store).adopt(source, "a")
    await source.delete([f"cursor/{'z' * 140}.json"])
    await source.put("cursor/zz.json", b"{")
    with pytest.raises(CorruptionError):
        await shelf_on(store).adopt(source, "a")
    assert store.objects == {}
