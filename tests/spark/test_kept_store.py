"""A worker's store: kept open, with a cache only if several tasks read the same parts."""

from __future__ import annotations

import msgspec
import pytest

from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError
from tidelog.spark.kept_store import choose_layer, reading_from
from tidelog.spark.scan import Scan
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.cached import CachedStore
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrapping import NOTHING_TOLD, Wrapping, wrap

URL = "s3://bucket/lake?endpoint=http://127.0.0.1:9&region=us-east-1"
CLOCK = SystemClock()
ALONE = Scan(schema=b"", columns=(), as_of=0, parts=())
SHARED = msgspec.structs.replace(ALONE, bounds=b"a range of keys")


def test_copies_are_kept_where_tasks_share_parts() -> None:
    """Tasks that share parts get a cache by default; the URL can force it on or off."""
    for scans, cached in (([ALONE], False), ([ALONE, SHARED], True)):
        with reading_from(URL, scans) as store:
            assert isinstance(store, CachedStore if cached else HedgedStore)
    with reading_from(f"{URL}&cache=1MiB&hedge=off", [ALONE]) as store:
        assert isinstance(store, CachedStore)
    with reading_from(f"{URL}&cache=off", [SHARED]) as store:
        assert isinstance(store, HedgedStore)
    with reading_from("file:///some/lake", [SHARED]) as store:
        assert not isinstance(store, CachedStore | HedgedStore)


def test_the_store_is_kept_until_it_fails() -> None:
    """Later tasks reuse a worker's store; after a failure the worker opens another."""
    with reading_from(URL, [SHARED]) as first:
        pass
    with reading_from(URL, [SHARED]) as second:
        assert second is first
    with pytest.raises(LocationError), reading_from(URL, [SHARED]):
        raise LocationError("the store did not answer")
    with reading_from(URL, [SHARED]) as third:
        assert third is not first


def test_without_a_word_a_store_stays_bare() -> None:
    """A store without URL options stays bare, since local storage needs no cache."""
    bare = wrap(MemoryStore(), NOTHING_TOLD, clock=CLOCK)

    assert choose_layer(bare, [SHARED], Wrapping()) is bare.meter
