"""The generator: each row is a function of its number, and never changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kit.clocks import SwiftClock
from kit.sources import ingest, table_of
from tidelog.collection.source.generator import Generator, mixed
from tidelog.collection.source.kind import RowRange
from tidelog.collection.source.kinds import open_kind
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore

SECOND = 1_000_000


async def location_with(clock: SwiftClock, *, settings: dict[str, str], **asked: Any) -> Location:
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=clock, store=store)
    await location.sources.create(
        SourceSpec(name="g", kind="generator", settings=settings, **asked)
    )
    return location


async def made(settings: dict[str, str], start: int, limit: int) -> pa.Table:
    """Return the rows of a range, from a generator opened for it."""
    location = await location_with(SwiftClock(), settings=settings)
    info, _ = await location.sources.find("g")
    kind = open_kind(info, store=location.store, clock=location.clock)
    found = RowRange(path="x", start=start, limit=limit)
    return pa.concat_tables([batch async for batch in kind.read(found)])


async def test_a_counter_counts_and_ends() -> None:
    """By default, a counter has a thousand rows a second since the year 2000."""
    location = await location_with(SwiftClock(), settings={"rows": "2500"}, time_column="time")

    ticks = await ingest(location, "g", bytes_max=32_000)
    found = (await table_of(location, "g")).sort_by("n")
    assert len(ticks) == 3
    assert found.column("n").to_pylist() == list(range(2500))
    assert str(found.column("time")[2499]) == "2000-01-01 00:00:02.499000+00:00"


async def test_rows_are_the_same_however_they_are_cut() -> None:
    """Any range gives the same rows as the whole. A tick, a task or a later run may ask for it."""
    asked = {"shape": "key-value", "seed": "7", "keys": "50", "skew": "2"}

    whole = await made(asked, 0, 70_000)
    some = await made(asked, 65_000, 66_000)
    other = await made({**asked, "seed": "8"}, 65_000, 66_000)
    assert some.equals(whole.slice(65_000, 1_000).combine_chunks())
    assert not other.column("key").equals(some.column("key"))
    # Bindings refer to these values, so another version must produce the same.
    assert whole.slice(0, len(GOLDEN)).select(["key", "value"]).to_pylist() == GOLDEN


GOLDEN = [
    {"key": 18, "value": 2186607963},
    {"key": 13, "value": 3226650044},
    {"key": 8, "value": 3877218465},
]


async def test_keys_are_skewed_as_said() -> None:
    """A share x of the keys has the share x ** (1 / (skew + 1)) of the rows."""
    for skew in (0, 1, 2):
        asked = {"shape": "key-value", "keys": "1000", "skew": str(skew)}
        keys = (await made(asked, 0, 40_000)).column("key").to_numpy()
        assert keys.min() == 0
        assert keys.max() <= 999
        for share in (0.01, 0.1, 0.5):
            expected = share ** (1 / (skew + 1))
            assert abs((keys < 1_000 * share).mean() - expected) < 0.01


async def test_rows_come_at_their_rate() -> None:
    """Rows arrive at the given rate since the source's creation, with their times of arrival."""
    clock = SwiftClock()
    location = await location_with(clock, settings={"rate": "100"}, time_column="time")
    ingester = await location.sources.ingester("g")
    begin_us = ingester.info.created_us

    await clock.sleep(2 * SECOND)
    first = await ingester.source.head()
    await clock.sleep(1 * SECOND)
    second = await ingester.source.head()
    rows = [head.left_bytes({}) // Generator.row_bytes for head in (first, second)]
    assert rows[0] >= 200
    assert 100 <= rows[1] - rows[0] <= 110
    await ingest(location, "g")
    times = (await table_of(location, "g")).column("time").cast(pa.int64()).to_numpy()
    assert times.min() == begin_us
    assert np.all(np.diff(np.sort(times)) == 10_000)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shape": "auction"}, "not 'auction'"),
        ({"rows": "many"}, r"settings\['rows'\]='many' must be a whole number"),
        ({"rows": "-1"}, "must be a whole number"),
        ({"rate": "0"}, "from 1 to"),
        ({"keys": "9"}, r"settings\['keys'\] needs settings\['shape'\]='key-value'"),
        ({"shape": "key-value", "skew": "9"}, "from 0 to 8"),
        ({"start": "yesterday"}, "is not a time"),
        ({"start": "9999999999999999999"}, "to the year 9000"),
        ({"colour": "red"}, "its settings: shape, rows"),
    ],
)
async def test_what_cannot_be_is_refused(settings: dict[str, str], said: str) -> None:
    """A wrong setting raises UsageError at creation."""
    with pytest.raises(UsageError, match=said):
        await location_with(SwiftClock(), settings=settings)


def test_the_mixing_is_the_known_one() -> None:
    """The mixing function is SplitMix64, with its published first numbers for seed 0."""
    assert [int(word) for word in mixed(np.arange(3), 0, np.uint64(0))] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
