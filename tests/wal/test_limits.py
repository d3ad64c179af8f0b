"""Limits of reads, and positions by time, in logs of both protocols."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from tidelog.errors import UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.log import Log
from tidelog.wal.opening import PROTOCOLS, create_log, open_log
from tidelog.wal.read.limits import Limits, ReadUsage, spend
from tidelog.wal.slot_protocol.shape import Shape

both = pytest.mark.parametrize("protocol", PROTOCOLS)
RECORDS = st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=5)), min_size=1, max_size=8)
NUMBERS = st.none() | st.integers(1, 12)


async def made(store: Store, protocol: str, *, rollup_slots: int = 4) -> Log:
    shape = Shape(rollup_slots=rollup_slots, rollover=Rollover(fragments=3, snapshots=3))
    return await create_log(
        store,
        name="x",
        clock=SwiftClock(),
        writer="w",
        protocol=protocol,
        shape=shape,
        batching=Batching(interval_us=0),
    )


async def rows_of(log: Log, start: int = 0, **options: Any) -> list[dict[str, Any]]:
    return [row async for table in log.scan(start, **options) for row in table.to_pylist()]


@given(
    tables=st.lists(RECORDS, max_size=6),
    records=NUMBERS,
    size=NUMBERS,
    fragments=NUMBERS,
    to_time_us=st.none() | st.integers(0, 10),
)
def test_a_read_stops_where_a_loop_over_records_would(
    tables: list[list[tuple[int, bytes]]],
    records: int | None,
    size: int | None,
    fragments: int | None,
    to_time_us: int | None,
) -> None:
    """A limited read stops where a loop over single records would, after one more table."""
    limits = Limits(records=records, bytes=size, fragments=fragments, to_time_us=to_time_us)
    given_: list[tuple[int, bytes]] = []
    spent, asked = ReadUsage(), 0
    for table in tables:
        times, bodies = zip(*table, strict=True)
        columns = {"timestamp_us": pa.array(times), "body": pa.array(bodies, pa.binary())}
        kept, spent, is_done = spend(limits, spent, pa.table(columns))
        given_ += [(row["timestamp_us"], row["body"]) for row in kept.to_pylist()]
        asked += 1
        if is_done:
            break

    wanted: list[tuple[int, bytes]] = []
    used = set[int]()
    for number, (time, body) in ((n, one) for n, table in enumerate(tables) for one in table):
        total = sum(len(b) for _, b in wanted)
        if (
            (records is not None and len(wanted) == records)
            or (to_time_us is not None and time >= to_time_us)
            or (size is not None and wanted and (total >= size or total + len(body) > size))
            or (fragments is not None and number not in used and len(used) == fragments)
        ):
            break
        wanted.append((time, body))
        used.add(number)
    assert given_ == wanted
    assert asked <= len(used) + 1
    assert spent == ReadUsage(len(wanted), sum(len(body) for _, body in wanted), len(used))


@both
async def test_scans_stop_at_limits(protocol: str) -> None:
    """A scan stops at its limits, and another scan continues from there."""
    store = MeteringStore(MemoryStore(), clock=SwiftClock())
    log = await made(store, protocol)
    for number in range(40):
        await log.append([b"%02d" % number] * 2)
    await log.close()
    for limits, count in (
        (Limits(records=5), 5),
        (Limits(bytes=7), 3),
        (Limits(bytes=1), 1),
        (Limits(fragments=3), 6),
        (Limits(records=9, fragments=2), 4),
        (Limits(to_time_us=0), 0),
        (Limits(to_time_us=2**62, records=1_000), 80),
    ):
        found = await rows_of(log, limits=limits)
        assert [row["position"] for row in found] == list(range(1, count + 1))
    assert len(await rows_of(log, 3, limit=5, limits=Limits(records=4))) == 2
    reached = 1
    while found := await rows_of(log, reached, limits=Limits(records=7)):
        assert found[0]["position"] == reached
        reached += len(found)
    assert reached == 81
    before = store.usage()
    await rows_of(log, limits=Limits(fragments=1))
    # The manifest, a path of snapshots and one fragment, instead of eight fragments.
    assert (store.usage() - before).get_count <= 6


@both
async def test_fragments_are_all_that_there_is(protocol: str) -> None:
    """Fetching the listed fragments, also past the manifest, returns all records."""
    log = await made(MemoryStore(), protocol, rollup_slots=7)
    for number in range(25):
        await log.append([b"%d" % number] * (1 + number % 3))
    found = await log.fragments()
    rows = [row for one in found for row in (await log.fetch(one)).to_pylist()]
    assert rows == await rows_of(log)
    assert [one.start for one in found[1:]] == [one.limit for one in found[:-1]]
    assert found[-1].limit == (await log.bounds()).next
    some = await log.fragments(10, limit=20)
    assert some == [one for one in found if one.limit > 10 and one.start < 20]
    await log.close()


@both
async def test_a_position_is_found_by_time(protocol: str) -> None:
    """A search by time returns the first record of that time or later, if times go back too."""
    dice = random.Random(protocol)
    log = await made(MemoryStore(), protocol, rollup_slots=5)
    assert await log.position_at(0) == 1
    for number in range(25):
        time = dice.randrange(1_000) if protocol == "slot" else None
        await log.append([b"%d" % number] * dice.randrange(1, 3), timestamp_us=time)
    rows = await rows_of(log)
    assert await log.position_at(2**63 - 1) == len(rows) + 1
    for time in {row["timestamp_us"] + off for row in rows for off in (-1, 0, 1)}:
        wanted = (row["position"] for row in rows if row["timestamp_us"] >= time)
        assert await log.position_at(time) == next(wanted, len(rows) + 1)
    for wrong in (-1, 2**63, datetime(1969, 12, 31, tzinfo=UTC)):
        with pytest.raises(UsageError):
            await log.position_at(wrong)
    await log.close()


@both
async def test_a_position_is_found_by_a_datetime(protocol: str) -> None:
    """A search takes a datetime, and treats one without a zone as UTC."""
    log = await made(MemoryStore(), protocol)
    before = datetime.now(UTC) - timedelta(days=1)
    await log.append([b"x"])
    there = before.astimezone(timezone(timedelta(hours=9)))
    for when in (before, there, before.replace(tzinfo=None)):
        assert await log.position_at(when) == 1
    assert await log.position_at(before + timedelta(days=2)) == 2
    await log.close()


async def test_a_time_is_found_with_few_requests() -> None:
    """A search by time reads the manifest, one snapshot of each level, and one fragment."""
    inner = MemoryStore()
    log = await made(inner, "slot")
    for number in range(200):
        await log.append([b"x"], timestamp_us=10 * number)
    await log.close()
    store = MeteringStore(inner, clock=SwiftClock())
    again = await open_log(store, name="x", clock=SwiftClock(), writer="r")
    depth = max(p.depth for p in (await again.describe()).snapshots)
    assert depth >= 4
    for number in range(0, 200, 7):
        before = store.usage()
        assert await again.position_at(10 * number) == number + 1
        assert (store.usage() - before).requests_count <= depth + 2
    before = store.usage()
    assert await again.position_at(10_000) == 201
    # The manifest, the missing slot, and the manifest again.
    assert (store.usage() - before).requests_count == 3
