"""The contract of every store: in memory, local, wrapped, and in the cloud by local servers."""

from __future__ import annotations

import pytest

from tidelog.core.clock import SystemClock
from tidelog.errors import ObjectChanged, ObjectExists, ObjectNotFound
from tidelog.store.port import Store
from tidelog.store.probe import probe_store

CLOCK = SystemClock()
MISSING = "missing/object"


async def keys_of(store: Store, prefix: str = "", after: str | None = None) -> list[str]:
    return [entry.key async for entry in store.list(prefix, after=after)]


async def test_what_is_put_is_read(store: Store) -> None:
    """A read returns the whole object and its e_tag; a plain put replaces the object."""
    first = await store.put("a/b", b"one")
    found = await store.get("a/b")
    assert (found.data, found.e_tag) == (b"one", first)
    second = await store.put("a/b", b"two, longer")
    found = await store.get("a/b")
    assert (found.data, found.e_tag) == (b"two, longer", second)
    assert second != first
    assert found.modified_us > 0


async def test_ranges_are_cut_short_at_the_end(store: Store) -> None:
    """A range past the end of an object is not an error: a reader of a growing object needs it."""
    e_tag = await store.put("ten", b"0123456789")
    empty = await store.put("empty", b"")
    cases = [
        ("ten", 0, None, b"0123456789"),
        ("ten", 2, 5, b"234"),
        ("ten", 7, None, b"789"),
        ("ten", 7, 100, b"789"),
        ("ten", 10, 20, b""),
        ("ten", 10, None, b""),
        ("ten", 50, None, b""),
        ("ten", 3, 3, b""),
        ("empty", 0, None, b""),
        ("empty", 0, 10, b""),
        ("empty", 5, None, b""),
    ]
    for key, start, limit, expected in cases:
        found = await store.get(key, start=start, limit=limit)
        assert found.data == expected, (key, start, limit)
        assert found.e_tag == (e_tag if key == "ten" else empty)
    for start, limit in ((0, None), (5, 10), (3, 3)):
        with pytest.raises(ObjectNotFound):
            await store.get(MISSING, start=start, limit=limit)


async def test_refresh_gives_only_what_changed(store: Store) -> None:
    """A refresh returns no bytes of an unchanged object, because pollers send many."""
    first = await store.put("head", b"one")
    assert await store.refresh("head", first) is None
    second = await store.put("head", b"two")
    found = await store.refresh("head", first)
    assert found is not None
    assert (found.data, found.e_tag) == (b"two", second)
    await store.delete(["head"])
    with pytest.raises(ObjectNotFound):
        await store.refresh("head", second)


async def test_large_objects_go_in_one_put(store: Store) -> None:
    """An object of 9 MiB is created by one put; client libraries would send it in parts."""
    data = bytes(range(256)) * (9 * 4_096)

    e_tag = await store.put("large", data, if_absent=True)
    found = await store.get("large")
    assert found.data == data
    assert found.e_tag == e_tag
    assert (await store.get("large", start=8 << 20, limit=(8 << 20) + 5)).data == bytes(range(5))


async def test_missing_objects(store: Store) -> None:
    """A read of a missing object raises ObjectNotFound, and its deletion succeeds."""
    with pytest.raises(ObjectNotFound):
        await store.get(MISSING)
    await store.delete([])
    await store.delete([MISSING, "other"])
    await store.put("there", b"1")
    await store.delete([MISSING, "there", "other"])
    with pytest.raises(ObjectNotFound):
        await store.get("there")
    assert await keys_of(store) == []


async def test_conditions(store: Store) -> None:
    """A put with ``if_absent`` or ``if_match`` succeeds only if its condition holds."""
    first = await store.put("x", b"1", if_absent=True)
    with pytest.raises(ObjectExists):
        await store.put("x", b"2", if_absent=True)
    second = await store.put("x", b"3", if_match=first)
    with pytest.raises(ObjectChanged):
        await store.put("x", b"4", if_match=first)
    with pytest.raises(ObjectChanged):
        await store.put(MISSING, b"5", if_match=second)
    assert (await store.get("x")).data == b"3"
    await store.delete(["x"])
    with pytest.raises(ObjectChanged):
        await store.put("x", b"6", if_match=second)
    await store.put("x", b"7", if_absent=True)
    assert (await store.get("x")).data == b"7"


async def test_the_probe_accepts_it(store: Store) -> None:
    """The store passes the probe of a new location, and the probe leaves no object."""
    await probe_store(store, clock=CLOCK)
    assert await keys_of(store) == []
