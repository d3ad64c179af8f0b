"""Listings are in key order, also from stores that order keys part by part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from hypothesis import given
from hypothesis import strategies as st

from tidelog.store.cloud.order import in_key_order, is_past, listing_start
from tidelog.store.port import Entry

# Few characters, on both sides of "/" in their order, so that names share beginnings.
NAMES = st.text(alphabet="-.a0b", min_size=1, max_size=3).filter(lambda name: name.strip("."))
KEYS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
PREFIXES = st.one_of(st.just(""), KEYS, KEYS.map(lambda key: key + "/"))


def parts_of(key: str) -> list[str]:
    return key.split("/")


def server_lists(keys: set[str], directory: str, offset: str | None, *, strings: bool) -> list[str]:
    """List like a server; one that orders part by part skips the offset's directory."""
    within = [key for key in keys if key.startswith(directory)]
    if strings:
        return sorted(key for key in within if offset is None or key > offset)
    return sorted(
        (
            key
            for key in within
            if offset is None
            or (parts_of(key) > parts_of(offset) and not key.startswith(offset + "/"))
        ),
        key=parts_of,
    )


async def entries_of(keys: list[str]) -> AsyncIterator[Entry]:
    for key in keys:
        yield Entry(key, 0, "e", 0)


def without_conflicts(keys: set[str]) -> set[str]:
    """Remove keys that are directories of others, because a file system cannot have both."""
    return {key for key in keys if not any(other.startswith(key + "/") for other in keys)}


def shown(keys: list[str], prefix: str, after: str | None) -> Iterator[str]:
    """Filter like `tidelog.store.cloud.store`."""
    for key in keys:
        if is_past(prefix, key):
            return
        if key.startswith(prefix) and (after is None or key > after):
            yield key


@given(keys=st.sets(KEYS), prefix=PREFIXES, after=st.none() | PREFIXES, strings=st.booleans())
async def test_any_server_gives_key_order(
    keys: set[str], prefix: str, after: str | None, strings: bool
) -> None:
    """A listing is in key order and complete, for any order and start of the server."""
    keys = without_conflicts(keys)
    expected = sorted(
        key for key in keys if key.startswith(prefix) and (after is None or key > after)
    )
    offset = listing_start(prefix, after, strings=strings)
    directory = prefix[: prefix.rfind("/") + 1]
    listed = server_lists(keys, directory, offset, strings=strings)
    found = list(shown(listed, prefix, after))

    async def order() -> list[str]:
        return [entry.key async for entry in in_key_order(entries_of(found), prefix)]

    assert await order() == expected
    if strings:
        assert found == expected


async def test_a_flat_listing_is_not_held_back() -> None:
    """A flat listing yields its first entry at once: only directories must wait."""

    async def endless() -> AsyncIterator[Entry]:
        number = 0
        while True:
            yield Entry(f"log/{number:09}", 0, "e", 0)
            number += 1

    async def first() -> str:
        async for entry in in_key_order(endless(), "log/"):
            return entry.key
        return ""

    assert await first() == "log/000000000"


def test_the_start_is_near() -> None:
    """A resumed listing starts close to its key."""
    assert listing_start("log/", "log/0042", strings=True) == "log/0042"
    assert listing_start("log/", "log/0042.parquet", strings=False) == "log/0041\U0010fffd"
    assert listing_start("log/004", None, strings=False) == "log/003\U0010fffd"
