"""wal3's fragments up to their last position and time."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tidelog.core.clock import SystemClock
from tidelog.errors import CorruptionError, Outcome, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.slot_object import place_slot_records
from tidelog.wal.format.wal3_records import (
    RECORDS,
    check_fragment,
    decode_fragment,
    encode_fragment,
    place_records,
    problems_of_fragment,
    setsum_of_records,
)
from tidelog.wal.manifest_log import as_log_records
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.opening import open_log

CLOCK = SystemClock()
LAST = 2**63 - 1


def records_at(position: int, time_us: int, count: int = 2) -> pa.Table:
    rows = [range(position, position + count), [time_us] * count, [b"body"] * count]
    return pa.table([list(column) for column in rows], schema=RECORDS)


def fragment_of(records: pa.Table, data: bytes) -> Fragment:
    start = records.column("position")[0].as_py()
    return Fragment(
        path=fragment_path(1),
        seq_no=1,
        start=start,
        limit=start + records.num_rows,
        num_bytes=len(data),
        setsum=setsum_of_records(records),
    )


async def log_of(records: pa.Table) -> MemoryStore:
    """Return a log of one fragment, as Chroma may leave it."""
    data = encode_fragment(records, write_id="w")
    fragment = fragment_of(records, data)
    manifest = Manifest(
        setsum=fragment.setsum,
        acc_bytes=len(data),
        writer="w",
        fragments=(fragment,),
        initial_offset=fragment.start,
        initial_seq_no=1,
    )
    store = MemoryStore()
    await store.put(fragment.path, data)
    await store.put(MANIFEST, encode_manifest(manifest))
    return store


@pytest.mark.parametrize("position", [1, LAST - 1, LAST, 2**63, 2**64 - 3])
@pytest.mark.parametrize("time_us", [0, LAST, 2**64 - 1])
def test_fragments_are_read_to_the_last_position(position: int, time_us: int) -> None:
    """Fragments are read up to wal3's last position, which is unsigned."""
    records = records_at(position, time_us)
    data = encode_fragment(records, write_id="w")
    found, fragment = decode_fragment(data, path="x"), fragment_of(records, data)

    check_fragment(found, len(data), fragment)
    assert found.equals(records)
    with pytest.raises(CorruptionError, match="its positions are not"):
        check_fragment(found, len(data), replace(fragment, start=fragment.start - 1))


def test_a_changed_limit_makes_nothing_of_its_size() -> None:
    """A check compares counts first: an array for this limit would take a terabyte."""
    records = records_at(1, 7)
    data = encode_fragment(records, write_id="w")
    for start, limit in ((1, 2**40), (2**64 - 1, 1), (0, 2**64 - 1)):
        changed = replace(fragment_of(records, data), start=start, limit=limit)
        told = problems_of_fragment(records, len(data), changed)
        assert told == [f"its positions are not {start} to {limit - 1}"]


@pytest.mark.parametrize(("position", "time_us"), [(2**63, 7), (LAST, 7), (1, 2**63)])
async def test_what_a_log_cannot_show_is_refused_by_name(position: int, time_us: int) -> None:
    """Records past the signed range, which wal3 returns, raise UsageError with their value."""
    store = await log_of(records_at(position, time_us))
    log = await open_log(store, name="x", clock=CLOCK, writer="w")

    with pytest.raises(UsageError, match="over 2\\^63-1, which only wal3's records may be"):
        _ = [table async for table in log.scan()]
    with pytest.raises(UsageError, match="over 2\\^63-1"):
        await log.fetch((await log.fragments())[0])
    found = [table async for table in Wal3Reader(store=store, clock=CLOCK).scan()]
    assert pa.concat_tables(found).equals(records_at(position, time_us))


def test_the_last_records_that_can_be_shown_are_shown() -> None:
    """The last record in the signed range is returned."""
    shown = as_log_records(records_at(LAST - 1, LAST))

    assert shown.column("position").to_pylist() == [LAST - 1, LAST]
    assert shown.column("timestamp_us").to_pylist() == [LAST, LAST]


async def test_an_append_that_could_not_be_shown_is_refused() -> None:
    """An append past the signed range is refused before it is sent."""
    store = await log_of(records_at(LAST - 1, 7))
    before = dict(store.objects)
    async with await open_log(store, name="x", clock=CLOCK, writer="w") as log:
        with pytest.raises(UsageError, match="log is full") as told:
            await log.append([b"one"])
    assert told.value.outcome is Outcome.NOT_APPLIED
    assert store.objects == before


def test_no_position_is_given_out_that_cannot_be_read() -> None:
    """Neither protocol gives out a position past the signed range."""
    bodies = pa.array([b"a", b"b"], pa.binary())
    times = pa.array([7, 7]).to_numpy()

    last = place_records(bodies, start=LAST - 1, timestamp_us=7)
    assert last.column("position").to_pylist() == [LAST - 1, LAST]
    for start in (LAST, 2**63, 2**64 - 1, 2**64):
        with pytest.raises(UsageError, match="log is full"):
            place_records(bodies, start=start, timestamp_us=7)
        with pytest.raises(UsageError, match="log is full"):
            place_slot_records(bodies, start=start, times=times)
