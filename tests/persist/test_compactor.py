"""Compaction keeps the contents of a shard, under any race or failure."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock, patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.shard_tables import schema_of, schemas, table_of, updates
from kit.shards import (
    MISMATCH,
    SCHEMA,
    Place,
    append_cut,
    contents,
    heard,
    history,
    in_memory,
    on_store,
    rows,
    writer_for,
)
from tidelog.consensus.memory import MemoryConsensus
from tidelog.core.frontier import Frontier
from tidelog.core.ids import SeqNo
from tidelog.errors import (
    AsOfBeforeSince,
    CorruptionError,
    LocationError,
    Outcome,
    PartMissing,
    ReadOvertaken,
    UsageError,
)
from tidelog.persist.format import parquet, part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance import compactor, merge_ranges, merge_rows, merging
from tidelog.persist.maintenance.compactor import CompactionReport, common_bucket, compact, merge
from tidelog.persist.maintenance.merging import FANOUT, MergeRequest, plan_full_merge
from tidelog.persist.read.rereading import reread
from tidelog.persist.states.batch import Batch, make_batch
from tidelog.persist.write import writer
from tidelog.rowhash import sums_of_rows
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request
from tidelog.testing.models import ShardModel, consolidate

OUT_OF_LINE = patch.object(part, "INLINE_BYTES", 0)


async def grown(place: Place, count: int, **made: object) -> Shard:
    """Return a shard after ``count`` appends, each of a row and a retraction of the row before."""
    shard = place.shard(**made)  # type: ignore[arg-type]
    for time in range(count):
        before = [("k", time - 1, time, -1)] if time else []
        await shard.compare_and_append(rows(*before, ("k", time, time, 1)), time, time + 1)
    return shard


async def test_a_merge_changes_no_contents_at_any_time(place: Place) -> None:
    """Every time since `since` reads the same, by the merging handle and by a new one."""
    shard = place.shard()
    await shard.hold("h", 0)
    model = await history(shard)
    assert (await compact(shard, full=True)).merges == 1
    for as_of in range(10):
        assert await contents(shard, as_of) == model.contents(as_of)
        assert await contents(place.shard(schema=None), as_of) == model.contents(as_of)
    assert consolidate(await heard(shard.listen(3), 10)) == model.changes(3)

    await shard.move_hold("h", 5)
    done = await compact(shard, full=True)
    assert (done.merges, len(shard.state.batches)) == (1, 1)
    assert done.rows_written < done.rows_read, "what was taken back before since is gone"
    for as_of in range(5, 10):
        assert await contents(place.shard(), as_of) == model.contents(as_of)
    assert consolidate(await heard(place.shard().listen(6), 10)) == model.changes(6)
    with pytest.raises(AsOfBeforeSince):
        await place.shard().snapshot(4)
    assert (await compact(shard, full=True)).merges == 0


@given(data=st.data())
def test_merges_of_any_updates_are_exact(data: st.DataObject) -> None:
    """Merges are exact for all types, with and without keys, in memory, by ranges and by files."""
    schema, kinds = data.draw(schemas())
    cuts = [*sorted(data.draw(st.sets(st.integers(1, 5), max_size=4))), 6]
    table = data.draw(updates(schema, kinds))
    since = data.draw(st.integers(0, 6))
    in_memory_bytes = data.draw(st.sampled_from([0, 1 << 20]))
    inline = data.draw(st.sampled_from([0, 4_096]))
    kept_bytes = data.draw(st.sampled_from([0, 1 << 20]))
    with (
        patch.object(merging, "KEPT_BYTES", kept_bytes),
        patch.object(merge_rows, "IN_MEMORY_BYTES", in_memory_bytes),
        patch.object(merge_ranges, "RANGE_ROWS_MAX", data.draw(st.sampled_from([1, 3, 1_000]))),
        patch.object(merge_ranges, "SINGLE_ROWS_MAX", data.draw(st.sampled_from([0, 1_000]))),
        patch.object(parquet, "ROW_GROUP_ROWS", data.draw(st.sampled_from([1, 2, 1_000]))),
        patch.object(part, "INLINE_BYTES", inline),
    ):
        asyncio.run(_exact(schema, table, cuts, since, data))


async def _exact(
    schema: ShardSchema, table: pa.Table, cuts: list[int], since: int, data: st.DataObject
) -> None:
    shard = in_memory().shard(schema=schema)
    model = ShardModel()
    await shard.hold("h", 0)
    await append_cut(shard, table, cuts, model)
    await shard.move_hold("h", since)
    batches = list(shard.state.batches)
    if batches:
        first = data.draw(st.integers(0, len(batches) - 1))
        last = data.draw(st.integers(first, len(batches) - 1))
        request = MergeRequest(tuple(batches[first : last + 1]), shard.state.since or 0)
        await merge(shard, request)
    await compact(shard, full=data.draw(st.booleans()))
    for as_of in range(since, 6):
        assert await contents(shard, as_of) == model.contents(as_of)
    for as_of in range(since, 5):
        assert consolidate(await heard(shard.listen(as_of), 6)) == model.changes(as_of)
    totals = shard.state.totals
    assert totals.rows == sum(b.rows for b in shard.state.batches)
    assert totals.diffs == sum(b.diffs for b in shard.state.batches)


async def test_years_of_small_writes_leave_few_batches() -> None:
    """A shard after many small appends has few batches, even if no caller asks for a full merge."""
    shard = await grown(in_memory(), 200)
    done = await compact(shard)
    assert len(shard.state.batches) <= 16
    assert done.rows_written <= 4 * 400
    assert await contents(shard, 150) == {("k", 150): 1}


async def test_what_was_merged_is_deleted_once_its_time_has_come() -> None:
    """The collector deletes merged parts after the delay, but no part that the state names."""
    place = in_memory()
    with OUT_OF_LINE:
        shard = await grown(place, 20)
        before = {p for p in place.store.objects if "/part/" in p}  # type: ignore[attr-defined]
        await compact(shard, full=True)
        await shard.machine.collect()
        there = {p for p in place.store.objects if "/part/" in p}  # type: ignore[attr-defined]
        assert before < there, "somebody may be reading them"
        await shard.machine.collect(after_us=0)
    named = {p.path for b in shard.state.batches for p in b.parts}
    assert {p for p in place.store.objects if "/part/" in p} == named  # type: ignore[attr-defined]
    assert await contents(place.shard(), 19) == {("k", 19): 1}


async def test_a_reader_whose_parts_went_reads_by_the_newest_state() -> None:
    """A reader that planned before a merge gets the same rows from the newest state."""
    place = in_memory()
    with OUT_OF_LINE:
        shard = await grown(place, 6)
        behind = place.shard()
        planned = await behind.snapshot(4)
        listener = place.shard().listen(2)
        other = place.shard()
        await compact(other, full=True)
        await other.machine.collect(after_us=0)
        assert (await planned.to_arrow()).to_pylist() == [{"c0": "k", "c1": 4, "_diff": 1}]
        found = await heard(listener, 6)
        assert [(*u.row[1:], u.time, u.diff) for u in found if u.diff > 0] == [
            (3, 3, 1),
            (4, 4, 1),
            (5, 5, 1),
        ]
        held = await behind.snapshot(2)
        await shard.hold("h")
        await shard.move_hold("h", 5)
        await compact(other, full=True)
        await other.machine.collect(after_us=0)
        with pytest.raises(AsOfBeforeSince):
            await held.to_arrow()


async def test_a_part_that_is_lost_is_told_so() -> None:
    """A lost part that the newest state still names raises PartMissing, not a silent re-read."""
    place = in_memory()
    with OUT_OF_LINE:
        shard = await grown(place, 3)
        (lost,) = [p.path for b in list(shard.state.batches)[1:2] for p in b.parts]
        assert lost is not None
        await place.store.delete([lost])
        for call in (contents(place.shard(), 2), compact(place.shard(), full=True)):
            with pytest.raises(PartMissing, match="restore the object"):
                await call


async def test_who_merges_the_same_at_once_merges_it_once() -> None:
    """The mergers that lose delete their own parts, so none leaks."""
    place = in_memory()
    with OUT_OF_LINE:
        await grown(place, 20)
        both = await asyncio.gather(*(compact(place.shard(), full=True) for _ in range(3)))
        assert sum(done.merges for done in both) == 1
        assert sum(done.overtaken for done in both) == 2
        last = place.shard()
        await last.refresh()
        await last.machine.collect(after_us=0)
    named = {p.path for b in last.state.batches for p in b.parts}
    assert {p for p in place.store.objects if "/part/" in p} == named  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", ["put", "get", "delete"])
async def test_a_merge_that_fails_has_changed_nothing(op: str) -> None:
    """A failed merge changes no contents, whichever request fails. The next merge succeeds."""
    place = in_memory()
    with OUT_OF_LINE:
        await grown(place, 12)
        for failing in range(20):
            left = [failing]

            def toss(request: Request, left: list[int] = left) -> Fault:
                left[0] -= request.op == op and "/part/" in request.key
                return Fault(happened=left[0] != -1)

            shard = place.shard(store=FaultyStore(place.store, toss=toss), clock=SwiftClock())
            try:
                await compact(shard, full=True)
            except LocationError:
                assert op != "delete", "what cannot be dropped is a leak, and no failure"
            assert await contents(place.shard(), 11) == {("k", 11): 1}
            assert await contents(place.shard(), 5) == {("k", 5): 1}
    assert len((await place.shard().refresh()).batches) == 1


async def test_a_merge_whose_answer_is_lost_keeps_what_it_wrote() -> None:
    """The answer to the commit is lost, and the state may name the parts."""
    place = in_memory()
    with OUT_OF_LINE:
        await grown(place, 8)
        shard = place.shard()
        shared = shard.consensus
        assert isinstance(shared, MemoryConsensus)

        class LossyConsensus(MemoryConsensus):
            async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
                await shared.compare_and_set(key, seqno, data)
                raise LocationError("lost after", outcome=Outcome.UNKNOWN)

        shard.machine.consensus = LossyConsensus(shared.records)
        with pytest.raises(LocationError):
            await compact(shard, full=True)
    assert len((await place.shard().refresh()).batches) == 1
    assert await contents(place.shard(), 7) == {("k", 7): 1}


async def test_damaged_bytes_are_not_merged() -> None:
    """CorruptionError: the new checksums would otherwise cover the damage."""
    place = in_memory()
    with OUT_OF_LINE:
        shard = await grown(place, 4)
        path = next(p.path for b in shard.state.batches for p in b.parts)
        assert path is not None
        data = (await place.store.get(path)).data
        await place.store.put(path, data[:-1] + b"x")
        before = await place.shard().refresh()
        with pytest.raises(CorruptionError, match="do not match its checksum"):
            await compact(place.shard(), full=True)
        assert await place.shard().refresh() == before


async def test_rows_without_a_key_stay_as_they_were_written() -> None:
    """Without a key, rows keep their order, and equal rows stay separate."""
    schema = ShardSchema(SCHEMA.data, 0)
    shard = in_memory().shard(schema=schema)
    for time, name in enumerate("zayb"):
        await shard.compare_and_append(rows((name, 1, time, 1), ("m", 1, time, 1)), time, time + 1)
    await shard.hold("h")
    await shard.move_hold("h", 2)
    await compact(shard, full=True)
    (batch,) = shard.state.batches
    (table,) = await shard.reader.read(batch.parts, schema)
    assert table.column("c0").to_pylist() == list("zmamymbm")
    assert table.column("_time").to_pylist() == [2, 2, 2, 2, 2, 2, 3, 3]


async def test_large_merges_come_in_parts_that_follow_one_another() -> None:
    """A merge splits its result into parts of limited size, with disjoint sorted key bounds."""
    place = in_memory()
    shard = place.shard()
    with OUT_OF_LINE, patch.object(merge_rows, "IN_MEMORY_BYTES", 0):
        for time in range(4):
            some = [(f"k{n:05}", time, time, 1) for n in range(time, 20_000, 4)]
            await shard.compare_and_append(rows(*some), time, time + 1)
        small = writer_for(shard, part_bytes=100_000)
        with patch.object(Shard, "writer", lambda *_: small):
            done = await compact(shard, full=True)
    (batch,) = shard.state.batches
    assert (done.rows_read, done.rows_written) == (20_000, 20_000)
    assert len(batch.parts) > 3
    assert batch.runs == (len(batch.parts),)
    assert all(p.is_sorted for p in batch.parts)
    bounds = [part.decode_bounds(p)["c0"] for p in batch.parts]
    assert bounds == sorted(bounds)
    assert all(before[1] <= after[0] for before, after in pairwise(bounds))
    found = await shard.reader.read(batch.parts, SCHEMA)
    assert pa.concat_tables(found).column("c0").to_pylist() == [f"k{n:05}" for n in range(20_000)]


@pytest.mark.parametrize("is_sorted", [True, False])
async def test_a_large_merge_has_few_rows_in_memory(is_sorted: bool) -> None:
    """A merge sums one key range at a time, whether or not its parts are sorted."""
    shard = in_memory().shard()
    writer = writer_for(shard, is_sorted=is_sorted)
    at_once: list[int] = []
    consolidated = merge_rows.consolidated

    def watched(tables: Sequence[pa.Table], **given: Any) -> pa.Table:
        at_once.append(sum(table.num_rows for table in tables))
        return consolidated(tables, **given)

    with (
        OUT_OF_LINE,
        patch.object(merge_rows, "IN_MEMORY_BYTES", 0),
        patch.object(merge_ranges, "RANGE_ROWS_MAX", 1_000),
        patch.object(parquet, "ROW_GROUP_ROWS", 200),
        patch.object(merge_rows, "consolidated", watched),
        patch.object(Shard, "writer", lambda *_: writer),
    ):
        for time in range(4):
            some = [(f"k{n:05}", time, time, 1) for n in range(time, 20_000, 4)]
            await shard.compare_and_append(rows(*some), time, time + 1)
        done = await compact(shard, full=True)
    assert (done.rows_read, done.rows_written) == (20_000, 20_000)
    assert sum(at_once) == 20_000
    assert max(at_once) <= 2_000, "a range, and at most a row group of each part"


async def appended_in_key_order(place: Place) -> Shard:
    """Return a shard of three appends: the keys of two overlap, and the third's are greater."""
    shard = place.shard()
    with OUT_OF_LINE:
        await shard.compare_and_append(rows(("a", 1, 0, 1), ("c", 1, 0, 1)), 0, 1)
        await shard.compare_and_append(rows(("b", 1, 1, 1)), 1, 2)
        await shard.compare_and_append(rows(("x", 1, 2, 1), ("y", 1, 2, 1)), 2, 3)
    return shard


def paths_of(shard: Shard) -> list[str | None]:
    return [part.path for batch in shard.state.batches for part in batch.parts]


async def test_a_merge_neither_reads_nor_hashes_a_part_whose_keys_meet_no_others() -> None:
    """The part remains in the merged batch, because its bounds and V prove the result."""
    place = in_memory()
    shard = await appended_in_key_order(place)
    *_, last = paths_of(shard)
    await shard.hold("h", 1)
    hashed: list[int] = []

    def watched(columns: Sequence[Any], times: Any, diffs: Any) -> Any:
        hashed.append(len(diffs))
        return sums_of_rows(columns, times, diffs)

    read = AsyncMock(wraps=shard.reader.read)
    with (
        OUT_OF_LINE,
        patch.object(merging, "KEPT_BYTES", 1),
        patch.object(part, "sums_of_rows", watched),
        patch.object(type(shard.reader), "read", lambda _, parts, schema: read(parts, schema)),
    ):
        done = await compact(shard, full=True)

    assert (done.merges, len(shard.state.batches)) == (1, 1)
    assert sum(hashed) == 3, "only the rows of the two parts that overlap are hashed"
    assert last not in [one.path for call in read.call_args_list for one in call.args[0]]
    assert len(paths_of(shard)) == 2
    assert paths_of(shard)[-1] == last
    assert await contents(place.shard(), 2) == {(k, 1): 1 for k in "abcxy"}
    assert (await compact(shard, full=True)).merges == 0


async def test_a_merge_that_loses_its_race_deletes_no_part_that_remains() -> None:
    """The second of two merges deletes the parts that it wrote, and keeps their common inputs."""
    place = in_memory()
    shard = await appended_in_key_order(place)
    other = place.shard()
    await other.refresh()
    with OUT_OF_LINE, patch.object(merging, "KEPT_BYTES", 1):
        request = plan_full_merge(other.state)
        assert request is not None
        await compact(shard, full=True)
        late = await merge(other, request)

    assert late.overtaken == 1
    assert await contents(place.shard(), 2) == {(k, 1): 1 for k in "abcxy"}


async def test_a_part_that_remains_may_be_older_than_all_sweeps() -> None:
    """A sweep deletes only unnamed parts, so the epoch of a named part does not stop a merge."""
    shard = await appended_in_key_order(in_memory())
    state = replace(shard.state, write_epoch=shard.state.write_epoch + 5)
    request = plan_full_merge(state)
    assert request is not None
    merged = make_batch(request.parts, lower=0, upper=3)

    decision = merging.decide_merge(state, request, merged)

    assert decision.diff is not None
    assert decision.diff.merged is not None
    assert decision.diff.merged.vanished == ()


async def test_one_value_in_most_rows_is_merged_by_files() -> None:
    """A value in most rows does not fit a key range, so the merge sums it by files."""
    shard = in_memory().shard()
    some = [("same" if n % 3 else f"k{n:05}", n, 0, 1) for n in range(3_000)]
    with (
        OUT_OF_LINE,
        patch.object(merge_rows, "IN_MEMORY_BYTES", 0),
        patch.object(merge_ranges, "SINGLE_ROWS_MAX", 1_000),
        patch.object(parquet, "ROW_GROUP_ROWS", 200),
        patch.object(merge_ranges.RangeMerger, "merged", side_effect=AssertionError),
    ):
        await shard.compare_and_append(rows(*some), 0, 1)
        await shard.compare_and_append(rows(("k", 1, 1, 1)), 1, 2)
        done = await compact(shard, full=True)
    assert (done.rows_read, done.rows_written) == (3_001, 3_001)


@given(
    buckets=st.lists(
        st.sampled_from([1, 2, 3, 4, 6, 8]).flatmap(
            lambda n: st.tuples(st.just(n), st.integers(0, n - 1))
        ),
        min_size=1,
        max_size=4,
    ),
    key=st.integers(0, 100),
)
def test_a_common_bucket_holds_all_keys(buckets: list[tuple[int, int]], key: int) -> None:
    """The common bucket covers every key of its parts, because readers skip parts by bucket."""
    count, at = common_bucket(buckets)
    if any(key % n == b for n, b in buckets):
        assert key % count == at
    assert len({*buckets}) > 1 or (count, at) == buckets[0]


def test_what_merges_did_adds_up() -> None:
    """The counts of several merges add up for the report of a command."""
    one = CompactionReport(merges=1, rows_read=10, rows_written=4, bytes_read=100, bytes_written=50)
    assert one + CompactionReport(overtaken=1) == CompactionReport(
        merges=1, overtaken=1, rows_read=10, rows_written=4, bytes_read=100, bytes_written=50
    )


async def test_a_finished_shard_is_merged_too() -> None:
    """The last batch of a finished shard has no upper. A merge advances its times to `since`."""
    shard = in_memory().shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 3)
    await shard.compare_and_append(rows(("a", 1, 3, -1), ("b", 1, 4, 1)), 3, None)
    await shard.hold("h")
    await shard.move_hold("h", 4)
    assert plan_full_merge(shard.state) is not None
    await compact(shard, full=True)
    (batch,) = shard.state.batches
    assert isinstance(batch, Batch)
    assert (batch.lower, batch.upper, batch.since, batch.rows) == (0, None, 4, 1)
    assert shard.state.upper_frontier == Frontier.empty()
    assert await contents(shard, 4) == {("b", 1): 1}


async def test_a_dropped_shard_refuses_readers_and_writers() -> None:
    """A drop deletes the data. Later calls raise, and a second drop does nothing."""
    place = in_memory()
    with OUT_OF_LINE:
        shard, zombie, reader = await grown(place, 5), place.shard(), place.shard()
        await shard.hold("h")
        await zombie.refresh()
        planned, slept = await reader.snapshot(3), await place.shard().appender("till")
        assert await shard.drop() == 5
        assert await place.shard().drop() == 0
        assert (await planned.to_arrow()).num_rows == 1, "who reads it has a while to do so"
        assert await shard.collect(after_us=0) >= 5
        late = await zombie.try_compare_and_append(rows(("k", 9, 5, 1)), 5, 6)
        assert late.verdict is MISMATCH
        assert late.upper.is_empty
        with pytest.raises(UsageError, match="was dropped"):
            await zombie.append(rows(("k", 9, 5, 1)), 5, 6)
        for writer in (slept, await zombie.appender("other")):
            with pytest.raises(UsageError, match="was dropped"):
                await writer.append(rows(("k", 9, 5, 1)), 6)
        with pytest.raises(AsOfBeforeSince, match="no time is readable"):
            await planned.to_arrow()
    state = await place.shard().refresh()
    assert (state.since, state.upper, len(state.batches), state.holds) == (None, None, 0, {})
    assert (state.totals.rows, state.totals.size_bytes) == (0, 0)


async def test_a_reader_that_has_begun_is_told_that_it_was_overtaken() -> None:
    """The reader retries without its parts, but raises ReadOvertaken after its first rows."""
    gone = PartMissing("gone", path="a")
    tries = list[int]()

    async def read(fails_at: int) -> AsyncGenerator[int, None]:
        tries.append(len(tries))
        for number in range(3):
            if number == fails_at and len(tries) < 3:
                raise gone
            yield number

    async def replaced(error: PartMissing) -> None:
        assert error is gone

    assert [n async for n in reread(lambda: read(0), replaced)] == [0, 1, 2]
    assert len(tries) == 3
    tries.clear()
    told = reread(lambda: read(2), replaced)
    assert [await anext(told), await anext(told)] == [0, 1]
    with pytest.raises(ReadOvertaken, match="read again"):
        await anext(told)

    async def lost(error: PartMissing) -> None:
        raise error

    tries.clear()
    with pytest.raises(PartMissing):
        [n async for n in reread(lambda: read(0), lost)]
    assert len(tries) == 1


async def test_a_claim_keeps_a_second_merger_from_the_same_parts() -> None:
    """P124: a merger claims a large merge, so concurrent mergers do not read the same parts."""
    recorded = RecordedStore(MemoryStore())
    place = on_store(recorded)
    with OUT_OF_LINE:
        await grown(place, FANOUT)
        with patch.object(compactor, "CLAIMED_BYTES", 1):
            found = await asyncio.gather(*(compact(place.shard()) for _ in range(3)))
    done = reduce(operator.add, found)
    assert (done.merges, done.rows_read) == (1, 2 * FANOUT - 1)
    assert (await place.shard().refresh()).claims == ()
    reads = Counter(r.key for r in recorded.records if r.op == "get" and "/part/" in r.key)
    assert set(reads.values()) == {1}


@pytest.mark.parametrize("key", [0, 1])
async def test_small_parts_are_one_chunk_before_a_merge_encodes_them(key: int) -> None:
    """Each chunk costs time in each later step, so many small ones are joined first."""
    schema = schema_of(["string", "int64"], keys=key)
    place = in_memory()
    shard = place.shard(schema=schema)
    with OUT_OF_LINE:
        for n in range(20):
            table = table_of(schema, [(f"k{n:03}", n, n, 1)])
            await shard.compare_and_append(table, n, n + 1)
    await shard.hold("h", 0)
    encoded: list[int] = []

    def watched(updates: pa.Table, *given: Any, **named: Any) -> Any:
        encoded.append(updates.column(0).num_chunks)
        return part.encode_part(updates, *given, **named)

    with OUT_OF_LINE, patch.object(writer, "encode_part", watched):
        await compact(shard, full=True)

    assert encoded == [1]
