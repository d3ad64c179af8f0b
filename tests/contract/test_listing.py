"""The contract of every store for listings and for unusual keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tidelog.errors import UsageError
from tidelog.store.keys import is_version
from tidelog.store.listing import folders_below
from tidelog.store.port import Store

MISSING = "missing/object"


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


async def test_listing_is_in_key_order(store: Store) -> None:
    """A listing is in the order of plain strings: "a-b" before "a/b", also on directories."""
    keys = [
        "a-b",
        "a.b",
        "a/b",
        "a/b-c",
        "a/c/d",
        "a/c-d",
        "a0",
        "ab",
        "b/x/y/z",
        "b/x-y",
        "A",
        "é",
    ]

    await put_all(store, keys)
    assert await keys_of(store) == sorted(keys)
    for after in [*keys, "a", "a/", "a-", "b/x", "zz"]:
        expected = [key for key in sorted(keys) if key > after]
        assert await keys_of(store, after=after) == expected, after


async def test_a_prefix_is_a_plain_string(store: Store) -> None:
    """A prefix may end within a name, and matches exactly the keys that begin with it."""
    keys = ["log/x/1", "log/x/2", "log/x-y/1", "log/xy/1", "logs/1", "log0"]

    await put_all(store, keys)
    for prefix in ["", "l", "log", "log/", "log/x", "log/x/", "log/x/1", "log/x-", "logs", "z"]:
        expected = [key for key in sorted(keys) if key.startswith(prefix)]
        assert await keys_of(store, prefix) == expected, prefix
        for after in [*keys, "log/x", "log/x.", "a", "log/x0"]:
            later = [key for key in expected if key > after]
            assert await keys_of(store, prefix, after) == later, (prefix, after)


async def test_a_listing_says_what_a_read_says(store: Store) -> None:
    """Sizes and e_tags of a listing equal those of a read, because sources plan reads by them."""
    await store.put("dir/a", b"12345")
    await store.put("dir/b", b"")
    entries = [entry async for entry in store.list("dir/")]
    assert [(entry.key, entry.size_bytes) for entry in entries] == [("dir/a", 5), ("dir/b", 0)]
    for entry in entries:
        assert is_version((await store.get(entry.key)).e_tag, entry.e_tag)
        assert entry.modified_us > 0


async def test_folders_have_names(store: Store) -> None:
    """Folders are listed in key order, once each; objects next to them are not listed."""
    keys = ["log/a-b/1", "log/a/1", "log/a/2/3", "log/b", "log/c/d/e/f", "logs/x/1"]

    await put_all(store, keys)

    assert await folders_below(store, "log/") == ["a-b", "a", "c"]
    assert await folders_below(store, "log/a/") == ["2"]
    assert await folders_below(store, "missing/") == []


async def test_long_listings_come_whole(store: Store) -> None:
    """A listing of more than one page of 1,000 is complete, also from the middle."""
    keys = sorted(f"d{number % 3}/{number:05}" for number in range(1_100))

    await put_all(store, keys)
    assert await keys_of(store) == keys
    assert await keys_of(store, "d1/", after=keys[500]) == [
        key for key in keys if key.startswith("d1/") and key > keys[500]
    ]
    await store.delete([*keys[:-1], MISSING])
    assert await keys_of(store) == keys[-1:]


async def test_unusual_keys(store: Store) -> None:
    """A store keeps every character of a key: it decodes, folds and loses none."""
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

    await put_all(store, keys)
    for key in keys:
        assert (await store.get(key)).data == key.encode(), key
        assert await keys_of(store, key) == [key]
    assert await keys_of(store) == sorted(keys)
    await store.delete(keys)
    assert await keys_of(store) == []


async def test_keys_that_could_be_folded_are_refused(store: Store, kind: str) -> None:
    """A key that some store would fold into another one raises UsageError on every store."""
    if kind in ("memory", "metered", "hedged", "cached"):
        pytest.skip("the dict takes any key; its users are ours")

    for key in ("", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/./b", ".tidelog/x", "a\0b"):
        with pytest.raises(UsageError):
            await store.put(key, b"")
        with pytest.raises(UsageError):
            await store.get(key)
        with pytest.raises(UsageError):
            await store.delete([key])
    assert await keys_of(store) == []
    assert await keys_of(store, "../") == []
