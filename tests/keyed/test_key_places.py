"""An index of keys in columns, compared with a dict, and its use by followers and lookups."""

from __future__ import annotations

import asyncio
import random

import pyarrow as pa
import pytest

from kit.keyed_engine import keyed_logs, opened_log, until, waiters_of
from tidelog.keyed.format.records import int64_of
from tidelog.keyed.read.feed import KeyedFeed
from tidelog.keyed.read.sources import KeyPlaces
from tidelog.keyed.reader import KeyedReader
from tidelog.keyed.values import Keys


@pytest.mark.parametrize("seed", range(20))
def test_the_index_finds_what_a_dict_finds(seed: int) -> None:
    """The index agrees with a dict for keys of all kinds, in chunks, and for absent keys."""
    dice = random.Random(f"places {seed}")
    pool = [dice.randbytes(dice.randrange(3)) for _ in range(12)] + [b"", b"\xff" * 9]
    chunks = [[dice.choice(pool) for _ in range(dice.randrange(9))] for _ in range(3)]
    flat = [key for chunk in chunks for key in chunk]
    found = KeyPlaces.of(pa.chunked_array([pa.array(one, pa.binary()) for one in chunks]))
    assert found[:] == sorted({*flat})
    asked = {*dice.sample(pool, 4), b"absent"}
    for key in asked:
        assert found.rows_of(key).tolist() == [n for n, one in enumerate(flat) if one == key]
    for some in (asked, {*asked, *(b"%d" % n for n in range(50))}):
        assert found.any_of(some) == sorted(some & {*flat})
    for first in asked:
        for last in (None, *asked):
            within = [k for k in flat if k >= first and (last is None or k < last)]
            assert found.has_any(first, last) == bool(within)


async def test_a_follower_past_the_end_causes_no_repeated_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower past the end gets later records and causes no repeated requests."""
    log = await opened_log(keyed_logs())
    await log.append([(b"k", b"1")])
    asked: list[bool] = []
    look = KeyedReader._look

    async def counted(self: KeyedReader, fresh: bool) -> object:
        asked.append(fresh)
        return await look(self, fresh)

    monkeypatch.setattr(KeyedReader, "_look", counted)
    got: dict[str, list[int]] = {"far": [], "near": []}

    async def follow(name: str, start: int) -> None:
        async for table in log.follow(b"k", start=start):
            got[name] += int64_of(table.column("sequence")).tolist()

    far = asyncio.create_task(follow("far", 4))
    await until(lambda: len(waiters_of(log)) == 1)
    near = asyncio.create_task(follow("near", 0))
    await asyncio.sleep(0.2)  # Repeated requests would come within this time.
    assert len(asked) < 10
    for number in range(5):
        await log.append([(b"k", b"%d" % number)])
    await until(lambda: len(got["near"]) == 6 and len(got["far"]) == 3)
    assert got == {"far": [4, 5, 6], "near": [1, 2, 3, 4, 5, 6]}
    for task in (far, near):
        task.cancel()
    await asyncio.gather(far, near, return_exceptions=True)
    await log.close()


async def test_whoever_follows_ranges_does_not_look_at_each_key_of_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a hundred followed ranges, the feed inspects few of a thousand arriving keys."""
    log = await opened_log(keyed_logs())
    feed = log._feed
    assert isinstance(feed, KeyedFeed)
    seen = 0
    one_of = KeyPlaces.__getitem__

    def counted(self: KeyPlaces, at: int) -> object:
        nonlocal seen
        seen += 1
        return one_of(self, at)

    monkeypatch.setattr(KeyPlaces, "__getitem__", counted)
    got: list[int] = []

    async def follow(number: int) -> None:
        async for table in log.follow(Keys.prefix(b"p%03d." % number), start=1):
            got.append(table.num_rows)  # noqa: PERF401 - it never ends

    tasks = [asyncio.create_task(follow(number)) for number in range(100)]
    await until(lambda: len(waiters_of(log)) == 100)
    await log.append([(b"q%d" % number, b"") for number in range(1_000)] + [(b"p007.", b"")])
    await until(lambda: bool(got))
    assert got == [1]
    assert 0 < seen < 100 * 20
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await log.close()
