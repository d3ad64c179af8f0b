"""Scenarios T37 to T45: merges change no contents, in any process and at any failure."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from kit.places import Addresses
from kit.shards import Place, contents, heard, history, in_memory, rows
from kit.stores import dying, keys_in
from tidelog.consensus.port import KeyRecord
from tidelog.core.ids import SeqNo
from tidelog.errors import LocationError, TidelogError
from tidelog.persist.format import parquet, part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance import compactor, merge_ranges, merge_rows, merging
from tidelog.persist.maintenance.compactor import compact, merge
from tidelog.persist.maintenance.merging import (
    FANOUT,
    MergeRequest,
    decide_merge,
    plan_full_merge,
    plan_merge,
)
from tidelog.persist.states.claim import CLAIM_US
from tidelog.persist.write.writer import PartWriter
from tidelog.testing import RecordedStore
from tidelog.testing.models import consolidate


@pytest.fixture(autouse=True)
def _objects() -> Iterator[None]:
    """Store every part as an object."""
    with patch.object(part, "INLINE_BYTES", 0):
        yield


async def grown(place: Place, count: int, *, shard: Shard | None = None) -> Shard:
    """Return a shard after ``count`` appends of one row each."""
    shard = shard or place.shard()
    for time in range(count):
        await shard.compare_and_append(rows((f"k{time}", time, time, 1)), time, time + 1)
    return shard


def all_rows(count: int) -> dict[tuple[str, int], int]:
    return {(f"k{n}", n): 1 for n in range(count)}


@pytest.mark.parametrize("since", [0, 4, 9])
async def test_t37_a_merge_changes_no_contents_at_any_time(place: Place, since: int) -> None:
    """Each time since `since` reads the same, by the merging handle and by a new one."""
    shard = place.shard()
    await shard.hold("h", 0)
    model = await history(shard)
    await shard.move_hold("h", since)
    assert (await compact(shard, full=True)).merges == 1
    await shard.collect(after_us=0)
    for reader in (shard, place.shard()):
        for as_of in range(since, 10):
            assert await contents(reader, as_of) == model.contents(as_of)
        for as_of in range(since, 9):
            assert consolidate(await heard(reader.listen(as_of), 10)) == model.changes(as_of)


async def test_t38_what_cancels_goes_once_it_shares_a_batch_and_since_has_passed(
    place: Place,
) -> None:
    """Updates cancel only if they share a batch and `since` has passed both."""
    shard = place.shard()
    await shard.hold("h", 0)
    for time in range(4):
        await shard.compare_and_append(rows(("a", 1, time, (-1) ** time)), time, time + 1)
    await compact(shard, full=True)
    assert shard.state.totals.rows == 4
    await shard.move_hold("h", 2)
    await compact(shard, full=True)
    assert shard.state.totals.rows == 2
    await shard.move_hold("h", 3)
    assert shard.state.totals.rows == 2
    await compact(shard, full=True)
    assert (shard.state.totals.rows, len(shard.state.batches)) == (0, 0)
    assert await contents(place.shard(), 3) == {}


async def test_t39_batches_grow_with_the_logarithm_of_the_updates() -> None:
    """With a merge after every tenth append, the batches stay logarithmic in number."""
    place = in_memory()
    shard, counted = place.shard(), []
    await shard.hold("h", 0)
    with patch.object(part, "INLINE_BYTES", 4096):
        for time in range(600):
            await shard.compare_and_append(rows((f"k{time}", 1, time, 1)), time, time + 1)
            if time % 10 == 9:
                await compact(shard)
                counted.append((time + 1, len(shard.state.batches)))
    for updates, batches in counted:
        assert batches <= FANOUT * (1 + math.log(updates, FANOUT)), (updates, batches)


@pytest.mark.parametrize("keys", ["steady", "zipf"])
async def test_t40_a_row_is_written_again_only_so_often(keys: str) -> None:
    """The rows rewritten by merges stay within a logarithmic factor of the rows appended."""
    dice, place = random.Random(7), in_memory()
    shard, each, steps = place.shard(), 40, 200
    await shard.hold("h", 0)
    held: dict[str, int] = {}
    came = written = 0
    with patch.object(part, "INLINE_BYTES", 4096):
        for time in range(steps):
            named = [
                str(time * each + n) if keys == "steady" else str(int(dice.paretovariate(0.8)))
                for n in range(each)
            ]
            changes: list[tuple[str, int | None, int, int]] = []
            for key in dict.fromkeys(named):
                if key in held:
                    changes.append((key, held[key], time, -1))
                held[key] = time
                changes.append((key, time, time, 1))
            await shard.compare_and_append(rows(*changes), time, time + 1)
            came += len(changes)
            await shard.move_hold("h", max(0, time - 20))
            written += (await compact(shard)).rows_written
    batches = len(shard.state.batches)
    assert written <= came * (1 + math.log2(max(2, batches))), (written / came, batches)
    assert await contents(place.shard(), steps - 1) == dict.fromkeys(held.items(), 1)


async def test_t41_an_outcome_counts_once_and_only_in_its_inputs_place(place: Place) -> None:
    """An outcome may be repeated, late or partial. Parts that did not count are deleted."""
    shard = await grown(place, 6)
    await shard.hold("h", 0)
    batches = tuple(shard.state.batches)
    late, slow = place.shard(), place.shard()
    await late.refresh()
    await slow.refresh()
    some = MergeRequest(batches[1:3], 0)
    assert (await merge(shard, some)).merges == 1
    assert len(shard.state.batches) == 5
    assert (await merge(late, some)).overtaken == 1  # Another handle repeats the merge.
    assert (await merge(slow, MergeRequest(batches, 0))).overtaken == 1
    again = decide_merge(
        shard.state, some, next(iter(shard.state.batches.within(some.lower, some.upper)))
    )
    assert (again.diff, again.result) == (None, merging.MergeVerdict.ALREADY)
    await compact(shard, full=True)
    assert (await merge(late, some)).overtaken == 1
    named = {one.path for batch in shard.state.batches for one in batch.parts}
    await shard.collect(after_us=0)
    assert {key for key in await keys_in(place.store) if "/part/" in key} == named
    assert await contents(place.shard(), 5) == all_rows(6)


async def test_t41_a_merge_ahead_of_since_is_refused(place: Place) -> None:
    """A merge beyond `since` is refused, because it would remove times that are still readable."""
    shard = await grown(place, 4)
    await shard.hold("h", 1)
    request = MergeRequest(tuple(shard.state.batches), 3)
    with pytest.raises(TidelogError, match="past since"):
        await merge(shard, request)
    assert len((await place.shard().refresh()).batches) == 4


@pytest.mark.parametrize("happened", [False, True])
async def test_t42_a_compactor_killed_at_any_request_leaves_work_for_others(
    happened: bool,
) -> None:
    """No row is lost, and the next compactor completes the work without an append."""
    deaths = 0
    for last in range(200):
        place = in_memory()
        await grown(place, 20)
        await place.shard().hold("h", 0)
        victim = place.shard(store=dying(place.store, last, happened=happened))
        try:
            await victim.compact(full=True)
            await victim.collect(after_us=0)
            break
        except LocationError:
            deaths += 1
        heir = place.shard()
        assert await contents(heir, 19) == all_rows(20)
        await heir.compact(full=True)
        await heir.collect(after_us=0)
        for _ in range(3):
            await heir.sweep()
        assert len(heir.state.batches) == 1
        assert len([key for key in await keys_in(place.store) if "/part/" in key]) == 1
        assert await contents(place.shard(), 19) == all_rows(20)
    assert deaths > 20


async def test_t42_what_a_dead_compactor_claimed_is_free_after_a_while(place: Place) -> None:
    """The claim of a dead compactor expires by the clock alone, without an append."""
    with patch.object(compactor, "CLAIMED_BYTES", 1):
        shard = await grown(place, FANOUT + 2)
        request = plan_merge(shard.state)
        assert request is not None
        assert await compactor._claim(shard, request)
        other = place.shard()
        assert (await compact(other)).merges == 0
        await other.clock.sleep(CLAIM_US + request.size_bytes + 1)
        assert (await compact(other)).merges >= 1
    assert await contents(place.shard(), FANOUT) == all_rows(FANOUT + 1)


async def test_t43_a_merge_holds_so_much_however_much_it_merges() -> None:
    """A merge holds a range of the key, and a row group of each part that overlaps it."""
    place, bound = in_memory(), 64 * 1024
    shard = place.shard()
    await shard.hold("h", 0)
    with patch.object(parquet, "ROW_GROUP_ROWS", 200):
        for time in range(40):
            table = rows(*[(f"{n * 40 + time:08}" * 4, n, time, 1) for n in range(4_000)])
            await shard.compare_and_append(table, time, time + 1)
    real = Shard.writer

    def small(self: Shard, schema: ShardSchema | None = None) -> PartWriter:
        made = real(self, schema)
        return PartWriter(
            store=made.store,
            clock=made.clock,
            shard=made.shard,
            schema=made.schema,
            write_epoch=made.write_epoch,
            part_bytes=bound,
        )

    raw = sum(4_000 * (32 + 8 + 8 + 8) for _ in range(40))
    assert raw > 100 * bound
    before = pa.default_memory_pool().bytes_allocated()
    most = 0
    put = PartWriter.write

    async def watched(self: PartWriter, updates: pa.Table, **given: object) -> list[part.Part]:
        nonlocal most
        most = max(most, pa.default_memory_pool().bytes_allocated() - before)
        return await put(self, updates, **given)  # type: ignore[arg-type]

    with (
        patch.object(Shard, "writer", small),
        patch.object(PartWriter, "write", watched),
        patch.object(merge_rows, "IN_MEMORY_BYTES", bound),
        patch.object(merge_ranges, "RANGE_BYTES", bound),
    ):
        assert (await compact(shard, full=True)).merges == 1
    assert len(next(iter(shard.state.batches)).parts) > 50
    # The range in hand, the rows of the next one, and a row group of each part.
    assert most < raw / 6, (most, raw)


async def test_t44_appends_without_merges_keep_their_cost() -> None:
    """Each append is one request of about the same size, with no batches or a thousand (P113)."""
    place = in_memory()
    shard = place.shard()
    recorded, sizes = RecordedStore(place.store), list[int]()
    inner = place.consensus()

    class SizedConsensus:
        """A consensus that records the size of each record."""

        head, scan = staticmethod(inner.head), staticmethod(inner.scan)
        sweep = staticmethod(inner.sweep)
        truncate, list_keys = staticmethod(inner.truncate), staticmethod(inner.list_keys)

        async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
            (one,) = records
            return await self.compare_and_set(one.key, one.seqno, one.data)

        async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
            sizes.append(len(data))
            return await inner.compare_and_set(key, seqno, data)

    writer = place.shard(store=recorded, consensus=SizedConsensus())
    with patch.object(part, "INLINE_BYTES", 4096):
        await grown(place, 1_000, shard=writer)
    # A record that names a new rollup is larger by that name.
    early, late = sorted(sizes[100:200])[50], sorted(sizes[-100:])[50]
    assert late < early + 100
    assert {r.key.split("/")[2] for r in recorded.records if r.op == "put"} <= {"rollup", "part"}
    done = await compact(shard)
    assert done.merges
    assert len(shard.state.batches) <= 2 * FANOUT
    assert await contents(place.shard(), 999) == all_rows(1_000)


PLANS = """
import asyncio, json, sys
from tidelog.core.clock import SystemClock
from tidelog.consensus.kinds import open_consensus, parse_consensus
from tidelog.core.ids import ShardId
from tidelog.persist.maintenance.merging import plan_full_merge, plan_merge
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.store.urls import open_store

async def main():
    clock = SystemClock()
    store = open_store(sys.argv[1], clock=clock, create=True)
    place = parse_consensus(sys.argv[2])
    consensus = open_consensus(place, location=sys.argv[3], store=store, clock=clock)
    shard = Shard(id=ShardId("s"), store=store, consensus=consensus, clock=clock)
    state = await shard.refresh()
    plans = [plan_merge(state), plan_full_merge(state)]
    print(json.dumps([
        [batch.digest for batch in state.batches],
        [[batch.digest for batch in plan.batches] for plan in plans],
    ]))

asyncio.run(main())
"""


async def test_t45_processes_that_read_one_state_plan_one_merge(
    shared: tuple[Place, Addresses],
) -> None:
    """A plan depends neither on the process's hash seed nor on how it obtained the state."""
    place, where = shared
    shard = place.shard()
    shard.machine.rollup_every = 7
    await grown(place, FANOUT + 5, shard=shard)

    def ask(seed: str) -> object:
        done = subprocess.run(
            [sys.executable, "-c", PLANS, *where.arguments],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        return json.loads(done.stdout)

    told = await asyncio.gather(*(asyncio.to_thread(ask, seed) for seed in ("1", "2")))
    plans = [plan_merge(shard.state), plan_full_merge(shard.state)]
    mine: list[list[Any]] = [
        [batch.digest for batch in shard.state.batches],
        [[batch.digest for batch in plan.batches] for plan in plans if plan is not None],
    ]
    assert told == [mine, mine]
    assert len(mine[1]) == 2
