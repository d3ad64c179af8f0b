"""What every store must do, asked of each: memory, local, metered, S3 by moto and by SeaweedFS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tidelog.clock import SystemClock
from tidelog.errors import ContentionError, ObjectChanged, ObjectExists, ObjectNotFound, UsageError
from tidelog.store import conditional
from tidelog.store.memory import MemoryStore
from tidelog.store.metered import Metered
from tidelog.store.port import Store
from tidelog.store.probe import probe_store
from tidelog.store.urls import open_store

CLOCK = SystemClock()
KINDS = ("memory", "local", "metered", "moto", "seaweed")
MISSING = "missing/object"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[], Store]:
    """Open the test's own place; each call gives another handle on the same objects."""
    if kind == "memory":
        shared: Store = MemoryStore()
        return lambda: shared
    if kind == "metered":
        within = MemoryStore()
        return lambda: Metered(within, clock=CLOCK)
    url = str(tmp_path / "store")
    if kind in ("moto", "seaweed"):
        url = request.getfixturevalue(kind).url(f"contract/{CLOCK.unique()}")
    return lambda: open_store(url, clock=CLOCK)


@pytest.fixture
def store(open_again: Callable[[], Store]) -> Store:
    return open_again()


async def keys_of(store: Store, prefix: str = "", after: str | None = None) -> list[str]:
    return [entry.key async for entry in store.list(prefix, after=after)]


async def put_all(store: Store, keys: Sequence[str]) -> None:
    """Put objects, 16 at a time."""
    rest = list(keys)

    async def put_some() -> None:
        while rest:
            key = rest.pop()
            await store.put(key, key.encode())

    await asyncio.gather(*(put_some() for _ in range(16)))


async def together(calls: Sequence[Awaitable[str]]) -> list[str | BaseException]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_what_is_put_is_read(store: Store) -> None:
    """Whole objects come back with their e_tag; a plain put replaces."""

    async def run() -> None:
        first = await store.put("a/b", b"one")
        found = await store.get("a/b")
        assert (found.data, found.e_tag) == (b"one", first)
        second = await store.put("a/b", b"two, longer")
        found = await store.get("a/b")
        assert (found.data, found.e_tag) == (b"two, longer", second)
        assert second != first
        assert found.modified_us > 0

    asyncio.run(run())


def test_ranges_are_cut_short_at_the_end(store: Store) -> None:
    """A reader of a growing object asks beyond its end; that is no error, on no store."""

    async def run() -> None:
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

    asyncio.run(run())


def test_refresh_gives_only_what_changed(store: Store) -> None:
    """Pollers ask often, so an unchanged object costs no transfer."""

    async def run() -> None:
        first = await store.put("head", b"one")
        assert await store.refresh("head", first) is None
        second = await store.put("head", b"two")
        found = await store.refresh("head", first)
        assert found is not None
        assert (found.data, found.e_tag) == (b"two", second)
        await store.delete(["head"])
        with pytest.raises(ObjectNotFound):
            await store.refresh("head", second)

    asyncio.run(run())


def test_listing_is_in_key_order(store: Store) -> None:
    """Key order is that of plain strings: "a-b" before "a/b", whatever directories do."""
    keys = ["a-b", "a.b", "a/b", "a/b-c", "a/c/d", "a/c-d", "a0", "ab", "b/x/y/z", "b/x-y", "A", "é"]

    async def run() -> None:
        await put_all(store, keys)
        assert await keys_of(store) == sorted(keys)
        for after in [*keys, "a", "a/", "a-", "b/x", "zz"]:
            expected = [key for key in sorted(keys) if key > after]
            assert await keys_of(store, after=after) == expected, after

    asyncio.run(run())


def test_a_prefix_is_a_plain_string(store: Store) -> None:
    """A prefix may end within a name, and takes nothing that only looks like it."""
    keys = ["log/x/1", "log/x/2", "log/x-y/1", "log/xy/1", "logs/1", "log0"]

    async def run() -> None:
        await put_all(store, keys)
        for prefix in ["", "l", "log", "log/", "log/x", "log/x/", "log/x/1", "log/x-", "logs", "z"]:
            expected = [key for key in sorted(keys) if key.startswith(prefix)]
            assert await keys_of(store, prefix) == expected, prefix
            for after in [*keys, "log/x", "log/x.", "a", "log/x0"]:
                later = [key for key in expected if key > after]
                assert await keys_of(store, prefix, after) == later, (prefix, after)

    asyncio.run(run())


def test_a_listing_says_what_a_read_says(store: Store) -> None:
    """Sources decide by a listing's size and e_tag what to read, so these are those of the read."""

    async def run() -> None:
        await store.put("dir/a", b"12345")
        await store.put("dir/b", b"")
        entries = [entry async for entry in store.list("dir/")]
        assert [(entry.key, entry.size_bytes) for entry in entries] == [("dir/a", 5), ("dir/b", 0)]
        for entry in entries:
            assert (await store.get(entry.key)).e_tag == entry.e_tag
            assert entry.modified_us > 0

    asyncio.run(run())


def test_long_listings_come_whole(store: Store) -> None:
    """More than one page of 1000, across directories, from the middle too."""
    keys = sorted(f"d{number % 3}/{number:05}" for number in range(1_100))

    async def run() -> None:
        await put_all(store, keys)
        assert await keys_of(store) == keys
        assert await keys_of(store, "d1/", after=keys[500]) == [
            key for key in keys if key.startswith("d1/") and key > keys[500]
        ]
        await store.delete([*keys[:-1], MISSING])
        assert await keys_of(store) == keys[-1:]

    asyncio.run(run())


def test_large_objects_go_in_one_put(store: Store) -> None:
    """9 MiB: more than client libraries send as one part of their own accord."""
    data = bytes(range(256)) * (9 * 4_096)

    async def run() -> None:
        e_tag = await store.put("large", data, if_absent=True)
        found = await store.get("large")
        assert found.data == data
        assert found.e_tag == e_tag
        assert (await store.get("large", start=8 << 20, limit=(8 << 20) + 5)).data == bytes(range(5))

    asyncio.run(run())


def test_unusual_keys(store: Store) -> None:
    """A key is taken as it is: no character is decoded, folded or lost on the way."""
    keys = [
        "with space/x y",
        "plus+plus",
        "percent%20and%",
        "Bucket=7/Fragment=3",
        "日本/ü",
        "tilde~(round)[square]",
        "a&b;c,d:e@f",
        "star*question?hash#",
        "quote'",
        "...",
    ]

    async def run() -> None:
        await put_all(store, keys)
        for key in keys:
            assert (await store.get(key)).data == key.encode(), key
            assert await keys_of(store, key) == [key]
        assert await keys_of(store) == sorted(keys)
        await store.delete(keys)
        assert await keys_of(store) == []

    asyncio.run(run())


def test_keys_that_could_be_folded_are_refused(store: Store, kind: str) -> None:
    """One object has one key: what another store would fold into another key is no key."""
    if kind in ("memory", "metered"):
        pytest.skip("the dict takes any key; its users are ours")

    async def run() -> None:
        for key in ("", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/./b", ".tidelog/x", "a\0b"):
            with pytest.raises(UsageError):
                await store.put(key, b"")
            with pytest.raises(UsageError):
                await store.get(key)
            with pytest.raises(UsageError):
                await store.delete([key])
        assert await keys_of(store) == []
        assert await keys_of(store, "../") == []

    asyncio.run(run())


def test_missing_objects(store: Store) -> None:
    """To read what is missing is an error, to delete it is none."""

    async def run() -> None:
        with pytest.raises(ObjectNotFound):
            await store.get(MISSING)
        await store.delete([])
        await store.delete([MISSING, "other"])
        await store.put("there", b"1")
        await store.delete([MISSING, "there", "other"])
        with pytest.raises(ObjectNotFound):
            await store.get("there")
        assert await keys_of(store) == []

    asyncio.run(run())


def test_conditions(store: Store) -> None:
    """The two conditions on which everything rests, one after the other."""

    async def run() -> None:
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

    asyncio.run(run())


def test_one_of_many_creators_wins(open_again: Callable[[], Store], kind: str) -> None:
    """A slot is given to exactly one writer, or a log would hold two records at one position."""
    rounds = 2 if kind == "seaweed" else 12
    stores = [open_again() for _ in range(16)]

    async def run() -> None:
        for number in range(rounds):
            key = f"slot/{number}"
            results = await together(
                [
                    store.put(key, f"writer {index}".encode(), if_absent=True)
                    for index, store in enumerate(stores)
                ]
            )
            winners = [index for index, result in enumerate(results) if isinstance(result, str)]
            assert len(winners) == 1
            assert (await stores[0].get(key)).data == f"writer {winners[0]}".encode()
            assert {type(result) for result in results} <= {str, ObjectExists, ContentionError}

    asyncio.run(run())


def test_replacements_lose_no_increment(open_again: Callable[[], Store], kind: str) -> None:
    """Read, add one, replace on condition: as many increments must be there as were answered."""
    writers, increments = 6, 4

    async def increment(store: Store, name: str) -> None:
        done = 0
        while done < increments:
            found = await store.get("counter")
            count = int(found.data.split()[0]) + 1
            body = f"{count} {name} {done}".encode()
            try:
                await conditional.replace(
                    store, "counter", body, e_tag=found.e_tag, clock=CLOCK
                )
            except ContentionError:
                await CLOCK.sleep(int(5_000 * CLOCK.uniform()))
            else:
                done += 1

    async def run() -> None:
        await open_again().put("counter", b"0 nobody")
        await asyncio.gather(*(increment(open_again(), f"w{name}") for name in range(writers)))
        found = await open_again().get("counter")
        assert int(found.data.split()[0]) == writers * increments

    asyncio.run(run())


def test_the_probe_accepts_it(store: Store) -> None:
    """A location can be created here, and the probe leaves nothing behind."""

    async def run() -> None:
        await probe_store(store, clock=CLOCK)
        assert await keys_of(store) == []

    asyncio.run(run())
