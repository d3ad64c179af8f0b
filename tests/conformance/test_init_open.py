"""Creating and opening logs.

| scenario of wal3's | shown by |
| --- | --- |
| nothing exists; initialising makes an empty manifest | test_a_new_log_is_empty |
| to open a missing log fails | test_what_is_not_there_is_not_opened |
| a second initialisation fails and touches nothing | test_a_second_making_touches_nothing |
| 32 initialise and open at once, all succeed | test_many_may_make_and_open_a_log_at_once |
| an orphan and no manifest: the next is at 2 | test_an_orphan_from_before_the_log_is_brought_in |
| the last retryable error after all rounds | test_who_is_never_first_gives_up |
"""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from kit.goldens import objects
from kit.protocols import CLOCK, WAL3, Kind, contents, opener_on
from kit.stores import InterposedStore
from tidelog.errors import ContentionError, NameTaken, NoSuchLog, ObjectChanged
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.manifest import MANIFEST, decode_manifest
from tidelog.wal.format.wal3_records import encode_fragment, place_records
from tidelog.wal.opening import create_log, open_log


async def keys(store: Store) -> list[str]:
    return [entry.key async for entry in store.list("")]


async def test_a_new_log_is_empty(kind: Kind, store: Store) -> None:
    """A new log is one manifest, in wal3's form with Chroma's bytes; positions begin at 1."""
    await kind.make(store)
    assert await keys(store) == [MANIFEST]
    data = (await store.get(MANIFEST)).data
    if kind is WAL3:
        assert data == objects("e_empty")[MANIFEST]
    manifest = decode_manifest(data)
    assert (manifest.oldest, manifest.next, manifest.next_seq_no) == (1, 1, 1)
    log = await open_log(store, name="x", clock=CLOCK, writer="w")
    assert log.protocol == kind.name
    bounds = await log.bounds()
    assert (bounds.oldest, bounds.next) == (1, 1)
    assert await contents(kind, store) == {}


async def test_what_is_not_there_is_not_opened(kind: Kind, store: Store) -> None:
    """A missing log raises NoSuchLog for readers, writers and scrubs, and no object is created."""
    with pytest.raises(NoSuchLog):
        await open_log(store, name="x", clock=CLOCK, writer="w")
    with pytest.raises(NoSuchLog):
        await kind.settle(store)
    with pytest.raises(NoSuchLog):
        await kind.scrub(store)
    with pytest.raises(NoSuchLog):
        _ = [table async for table in kind.reader(store).scan()]
    assert await keys(store) == []


async def test_a_second_making_touches_nothing(kind: Kind, store: Store) -> None:
    """A second creation of a log, in any protocol, raises NameTaken and changes no object."""
    log = await create_log(store, name="x", clock=CLOCK, writer="w", protocol=kind.name)
    await log.append([b"one"])
    await log.close()
    before = {key: (await store.get(key)).data for key in await keys(store)}
    for protocol in ("slot", "manifest"):
        with pytest.raises(NameTaken):
            await create_log(store, name="x", clock=CLOCK, writer="w", protocol=protocol)
    assert {key: (await store.get(key)).data for key in await keys(store)} == before


async def test_many_may_make_and_open_a_log_at_once(kind: Kind, store: Store) -> None:
    """Concurrent creations and opens succeed and find one log, which then takes an append."""
    await asyncio.gather(*(kind.make(store) for _ in range(32)))
    await asyncio.gather(*(kind.settle(store) for _ in range(32 if kind is WAL3 else 2)))
    async with kind.writer(store) as writer:
        assert await writer.append([b"one"]) == 1
    assert await contents(kind, store) == {1: b"one"}


@pytest.mark.parametrize("kind", [WAL3], ids=str)
async def test_an_orphan_from_before_the_log_is_brought_in(kind: Kind, store: Store) -> None:
    """The first writer of a new log adds a fragment that was stored before its manifest."""
    records = place_records(pa.array([b"orphan"], pa.binary()), start=1, timestamp_us=7)
    await store.put(fragment_path(1), encode_fragment(records, write_id="other"))
    await kind.make(store)
    async with kind.writer(store) as writer:
        assert await writer.append([b"next"]) == 2
    assert await contents(kind, store) == {1: b"orphan", 2: b"next"}


async def test_who_is_never_first_gives_up(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """An opener that loses every try raises ContentionError, and the log stays intact."""
    monkeypatch.setattr("tidelog.wal.slot_protocol.fencing.TRIES_MAX", 3)
    monkeypatch.setattr("tidelog.wal.manifest_protocol.committer.TRIES_MAX", 10)

    inner = MemoryStore()
    await kind.make(inner)
    if kind is WAL3:
        records = place_records(pa.array([b"orphan"], pa.binary()), start=1, timestamp_us=7)
        await inner.put(fragment_path(1), encode_fragment(records, write_id="other"))

    async def before(op: str, key: str) -> None:
        if op == "put" and key == MANIFEST:
            raise ObjectChanged("another process replaced or deleted the object", key=key)
        if op == "put" and key.startswith("epoch/"):
            await opener_on(inner, "other").open(lanes=1, alpha=1)

    with pytest.raises(ContentionError, match="gave up after"):
        await kind.settle(InterposedStore(inner, before=before))
    await kind.settle(inner)
    assert len(await contents(kind, inner)) == (1 if kind is WAL3 else 0)
