"""Merges by tasks keep the contents, with any input, any race and any failure."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import tidelog
from kit.shard_tables import schema_of, schemas, table_of, updates
from kit.shards import append_cut, contents, heard, on_store
from kit.transactions import registered
from tidelog.cli.main import main
from tidelog.core.clock import SystemClock
from tidelog.errors import CorruptionError, LocationError, PartMissing, UsageError
from tidelog.persist.format import part
from tidelog.persist.format.part import decode_bounds
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance import compactor
from tidelog.persist.maintenance.compactor import compact
from tidelog.persist.maintenance.merger import MergedParts
from tidelog.persist.maintenance.merging import MergeRequest
from tidelog.persist.states.claim import live_claims
from tidelog.spark import merge_plan, merge_task, merger
from tidelog.spark.merger import SparkMerger
from tidelog.spark.tasks import Work
from tidelog.store.memory import MemoryStore
from tidelog.store.urls import open_store
from tidelog.testing.models import ShardModel, consolidate, updates_of


class _Tags:
    def addJobTag(self, tag: str) -> None: ...

    def removeJobTag(self, tag: str) -> None: ...


@dataclass
class TasksHere:
    """A replacement for Spark's tasks: this process runs them, one after the other."""

    tags: Any = field(default_factory=_Tags)
    is_elsewhere: bool = False
    places: list[int] = field(default_factory=list)

    def cores_count(self) -> int:
        return 3

    def run(self, work: Work, items: Sequence[Any]) -> list[Any]:
        return [one for item in items for one in work([item])]

    def meet(self, first: Work, items: Sequence[Any], second: Work, partitions: int) -> list[Any]:
        handed = [pair for item in items for pair in first([item])]
        self.places.append(len({place for place, _ in handed}))
        met = [[p for p in handed if p[0] == place] for place in range(partitions)]
        return [one for pairs in met for one in second(pairs)]


@contextmanager
def tasks_here(tasks: TasksHere | None = None) -> Iterator[TasksHere]:
    """Run the tasks of merges in this process, many of them for few bytes."""
    found = tasks or TasksHere()
    with (
        patch.object(merger, "tasks_of", lambda _: found),
        patch.object(merge_task, "use_one_core"),
        small_tasks(),
    ):
        yield found


@contextmanager
def small_tasks() -> Iterator[None]:
    with (
        patch.object(merge_plan, "READ_BYTES", 1),
        patch.object(merge_plan, "MERGED_BYTES", 2_000),
        patch.object(part, "INLINE_BYTES", 0),
    ):
        yield


def on_disk(path: Path, schema: ShardSchema) -> Shard:
    store = open_store(str(path), clock=SystemClock())
    return on_store(store).shard(schema=schema, clock=SystemClock())


KEYED = schema_of(["int64", "string"], keys=1)


async def grown(shard: Shard, *, times: int = 6, keys: int = 2_000) -> ShardModel:
    """Write keys with a new value at each time, to a shard that is held at 3."""
    model = ShardModel()
    with patch.object(part, "INLINE_BYTES", 0):
        await shard.hold("h", 0)
        for time in range(times):
            new = [(n, f"row {n} at {time}", time, 1) for n in range(time, keys, 3)]
            old = [(n, f"row {n} at {time - 3}", time, -1) for n in range(time, keys, 3)]
            table = table_of(shard.written_schema(), new + (old if time >= 3 else []))
            await shard.compare_and_append(table, time, time + 1)
            model.compare_and_append(updates_of(table), time, time + 1)
        await shard.move_hold("h", 3)
    return model


async def check(shard: Shard, model: ShardModel, since: int, upper: int) -> None:
    for as_of in range(since, upper):
        assert await contents(shard, as_of) == model.contents(as_of)
    for as_of in range(since, upper - 1):
        assert consolidate(await heard(shard.listen(as_of), upper)) == model.changes(as_of)


@settings(max_examples=25)
@given(data=st.data())
def test_merges_of_any_updates_are_exact(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Merges are exact for every type, with keys and without, by ranges, by hashes, and joined."""
    schema, kinds = data.draw(schemas())
    cuts = [*sorted(data.draw(st.sets(st.integers(1, 5), max_size=4))), 6]
    table = data.draw(updates(schema, kinds, max_size=40))
    since = data.draw(st.integers(0, 6))
    folder = tmp_path_factory.mktemp("store")
    asyncio.run(_exact(on_disk(folder, schema), table, cuts, since))


async def _exact(shard: Shard, table: pa.Table, cuts: list[int], since: int) -> None:
    model = ShardModel()
    await shard.hold("h", 0)
    with tasks_here():
        await append_cut(shard, table, cuts, model)
        await shard.move_hold("h", since)
        batches = len(shard.state.batches)
        done = await compact(shard, full=True, merger=spark_merger())
    assert len(shard.state.batches) <= 1
    assert done.merges == 1 or batches <= 1
    await check(shard, model, since, 6)


def spark_merger(spark: Any = None) -> SparkMerger:
    return SparkMerger(spark, least_bytes=0)


async def test_tasks_merge_rows_at_the_time_of_their_transaction(tmp_path: Path) -> None:
    """The bytes of parts written before their commit have an earlier time."""
    place = on_store(open_store(str(tmp_path), clock=SystemClock()))
    found = await registered(place, "a")
    with tasks_here():
        for time in (5, 7):
            rows = pa.table({"c0": [f"k{n}" for n in range(time)], "c1": list(range(time))})
            written = await found.write_parts("a", rows)
            await found.commit_parts({"a": [written]}, at=time, token=("w", time))
        shard = place.shard(name="a", clock=SystemClock())
        assert (await compact(shard, full=True, merger=spark_merger())).merges == 1

    told = await heard(shard.listen(0), 8)
    assert Counter(update.time for update in told) == {5: 5, 7: 7}
    assert (await contents(shard, 5)).total() == 5


async def test_ranges_of_a_merge_stand_in_order(tmp_path: Path) -> None:
    """Parts of one run do not overlap, so that a read by key opens only the parts it needs."""
    shard = on_disk(tmp_path, KEYED)
    model = await grown(shard)
    with tasks_here() as tasks:
        assert (await compact(shard, full=True, merger=spark_merger())).merges == 1

    (batch,) = shard.state.batches
    bounds = [decode_bounds(one)["c0"] for one in batch.parts]
    assert tasks.places[0] >= 5
    assert batch.runs == (len(batch.parts),)
    assert len(batch.parts) == tasks.places[0]
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(bounds))
    assert {one.schema_id for one in batch.parts} == {0}
    await check(on_disk(tmp_path, KEYED), model, 3, 6)


async def test_rows_of_one_key_are_shared_out_by_their_hash(tmp_path: Path) -> None:
    """Rows of one key are divided by their hash, since a range cannot divide them."""
    shard = on_disk(tmp_path, schema_of(["int64", "string"], keys=2))
    model = ShardModel()
    await shard.hold("h", 0)
    for time in range(4):
        rows = [(7, f"row {n}", time, 1 if time % 2 == 0 else -1) for n in range(time, 3_000)]
        table = table_of(shard.written_schema(), rows)
        await shard.compare_and_append(table, time, time + 1)
        model.compare_and_append(updates_of(table), time, time + 1)
    await shard.move_hold("h", 2)
    with tasks_here() as tasks:
        await compact(shard, full=True, merger=spark_merger())

    (batch,) = shard.state.batches
    assert tasks.places[0] >= 4
    assert len(batch.runs) == len(batch.parts) >= 4
    await check(shard, model, 2, 4)


async def test_columns_that_came_later_are_merged_by_tasks(tmp_path: Path) -> None:
    """Tasks merge parts of two schemas, and the contents stay the same."""
    shard = on_disk(tmp_path, KEYED)
    await grown(shard)
    await shard.evolve_schema(pa.schema([*KEYED.data, pa.field("later", pa.int32())]))
    before = await contents(on_disk(tmp_path, shard.written_schema()), 5)
    with tasks_here():
        assert (await compact(shard, full=True, merger=spark_merger())).merges == 1

    (batch,) = shard.state.batches
    assert {one.schema_id for one in batch.parts} == {1}
    assert await contents(on_disk(tmp_path, shard.written_schema()), 5) == before
    assert len(before) == 2_000


class _LossyTasks(TasksHere):
    """One task's result is lost, and another's arrives twice."""

    def meet(self, *given: Any) -> list[Any]:
        found = super().meet(*given)
        return [*found[:1], *found[:1], *found[2:]]


async def test_v_of_every_merge_is_compared(tmp_path: Path) -> None:
    """A merge whose rows differ from its input raises CorruptionError and commits nothing."""
    shard = on_disk(tmp_path, KEYED)
    model = await grown(shard)
    with tasks_here(_LossyTasks()), pytest.raises(CorruptionError, match="differ from its inputs"):
        await compact(shard, full=True, merger=spark_merger())

    assert len(shard.state.batches) == 6
    await check(shard, model, 3, 6)


async def test_what_a_task_meets_is_told_as_it_is(tmp_path: Path, spark: SparkSession) -> None:
    """A damaged or missing part stops the merge with the error of any reader."""
    shard = on_disk(tmp_path, KEYED)
    await grown(shard, times=3)
    path = tmp_path / (list(shard.state.batches)[1].parts[0].path or "")
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with (
        small_tasks(),
        # Without samples, only tasks read the part.
        patch.object(merge_plan, "MERGED_BYTES", 1 << 30),
        pytest.raises(CorruptionError, match="do not match its checksum"),
    ):
        await compact(shard, full=True, merger=spark_merger(spark))
    path.unlink()
    with (
        small_tasks(),
        patch.object(merge_plan, "MERGED_BYTES", 1 << 30),
        pytest.raises(PartMissing),
    ):
        await compact(shard, full=True, merger=spark_merger(spark))
    assert len(shard.state.batches) == 3


async def test_a_merge_by_tasks_of_spark(tmp_path: Path, spark: SparkSession) -> None:
    """The user's call merges by key ranges; a keyless merge keeps the written order."""
    shard = on_disk(tmp_path, KEYED)
    model = await grown(shard)
    with small_tasks(), patch.object(merger.SparkMerger, "__init__", _least(0)):
        done = await shard.compact(full=True, spark=spark)
    assert (done.merges, done.overtaken) == (1, 0)
    assert done.rows_written < done.rows_read
    assert len(next(iter(shard.state.batches)).parts) >= 5
    await check(on_disk(tmp_path, KEYED), model, 3, 6)

    keyless = schema_of(["string"], keys=0)
    (tmp_path / "plain").mkdir()
    plain = on_disk(tmp_path / "plain", keyless)
    await plain.hold("h", 0)
    for time in range(4):
        table = table_of(keyless, [(f"{time} {n}", time, 1) for n in range(500)])
        await plain.compare_and_append(table, time, time + 1)
    with small_tasks():
        await compact(plain, full=True, merger=spark_merger(spark))
    (batch,) = plain.state.batches
    rows = [r for one in batch.parts for r in await _rows_of(plain, one)]
    assert rows == [f"{time} {n}" for time in range(4) for n in range(500)], "as they were written"


def _least(least_bytes: int) -> Any:
    made = SparkMerger.__init__

    def init(self: SparkMerger, spark: SparkSession, **told: Any) -> None:
        made(self, spark, **{**told, "least_bytes": least_bytes})

    return init


async def _rows_of(shard: Shard, one: part.Part) -> list[object]:
    (table,) = await shard.reader.read([one], shard.written_schema())
    return table.column("c0").to_pylist()


async def test_what_is_small_is_merged_here(tmp_path: Path) -> None:
    """A small merge runs without tasks, and without a session."""
    shard = on_disk(tmp_path, KEYED)
    model = await grown(shard, times=4)
    with patch.object(merger, "tasks_of", side_effect=AssertionError):
        assert (await compact(shard, full=True, merger=SparkMerger(None))).merges == 1  # type: ignore[arg-type]
    await check(shard, model, 3, 4)


async def test_executors_that_cannot_reach_a_store_are_not_asked() -> None:
    """Executors cannot reach the memory store of this process."""
    shard = on_store(MemoryStore()).shard(schema=KEYED)
    await grown(shard, times=3)
    with pytest.raises(UsageError, match="cannot reach memory"):
        await compact(shard, full=True, merger=spark_merger())


@dataclass
class _InterruptedMerger:
    """A merger with another action after its work, before its result is applied."""

    inner: SparkMerger
    also: Any
    written: list[MergedParts] = field(default_factory=list)

    async def write(self, shard: ShardHandle, request: MergeRequest) -> MergedParts:
        found = await self.inner.write(shard, request)
        self.written.append(found)
        await self.also()
        return found


async def test_a_result_that_comes_late_is_not_applied(tmp_path: Path) -> None:
    """A merge that another process finished first is not applied, and its parts are deleted."""
    shard, other = on_disk(tmp_path, KEYED), on_disk(tmp_path, KEYED)
    model = await grown(shard)

    async def merge_too() -> None:
        await other.move_hold("h", 4)
        assert (await compact(other, full=True)).merges == 1

    late = _InterruptedMerger(spark_merger(), merge_too)
    with tasks_here():
        done = await compact(shard, full=True, merges_max=1, merger=late)
    assert (done.merges, done.overtaken) == (0, 1)
    paths = [tmp_path / (one.path or "") for one in late.written[0].parts]
    assert paths
    assert not any(path.exists() for path in paths)
    await check(shard, model, 4, 6)


async def test_a_result_that_slept_through_two_sweeps_is_written_again(tmp_path: Path) -> None:
    """Sweeps may have deleted the parts of a late merge, so it is refused and done again."""
    shard, other = on_disk(tmp_path, KEYED), on_disk(tmp_path, KEYED)
    model = await grown(shard)
    sweeps: list[int] = []

    async def sweep_thrice() -> None:
        if not sweeps:
            sweeps.extend([(await other.sweep()).deleted for _ in range(3)])

    late = _InterruptedMerger(spark_merger(), sweep_thrice)
    with tasks_here():
        done = await compact(shard, full=True, merger=late)
    assert (done.merges, done.overtaken) == (1, 1)
    assert sweeps[-1] == len(late.written[0].parts)
    await check(shard, model, 3, 6)


async def test_a_large_merge_is_claimed_while_it_is_done(tmp_path: Path) -> None:
    """A claim keeps other processes from the same merge; it ends with the merge."""
    shard, other = on_disk(tmp_path, KEYED), on_disk(tmp_path, KEYED)
    model = await grown(shard)
    seen: list[int] = []

    async def look() -> None:
        state = await other.refresh()
        now_us = SystemClock().now_us()
        seen.append(len(live_claims(state.claims, now_us=now_us, size_bytes=1 << 40)))
        assert (await compact(other)).merges == 0

    with tasks_here(), patch.object(compactor, "CLAIMED_BYTES", 0):
        done = await compact(shard, full=True, merger=_InterruptedMerger(spark_merger(), look))
    assert (seen, done.merges, shard.state.claims) == ([1], 1, ())
    await check(shard, model, 3, 6)


class _FailingTasks(TasksHere):
    def meet(self, *_: Any) -> list[Any]:
        raise LocationError("Spark did not finish the merge")


async def test_a_merge_that_fails_changes_nothing(tmp_path: Path) -> None:
    """A failed merge changes nothing, and another handle can do the merge."""
    shard = on_disk(tmp_path, KEYED)
    model = await grown(shard)
    with tasks_here(_FailingTasks()), pytest.raises(LocationError):
        await compact(shard, full=True, merger=spark_merger())
    assert len((await shard.refresh()).batches) == 6
    assert (await compact(on_disk(tmp_path, KEYED), full=True)).merges == 1
    await check(shard, model, 3, 6)


def test_the_command_merges_on_spark(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command merges collections too, and starts Spark only for large merges."""
    started: list[tuple[str | None, dict[str, str]]] = []

    def session(*, master: str | None, extra: dict[str, str]) -> SparkSession:
        started.append((master, dict(extra)))
        return spark

    sessions = importlib.import_module("tidelog.spark.session")
    monkeypatch.setattr(sessions, "session", session)
    monkeypatch.setattr(sessions, "stop", lambda _: started.append(("stopped", {})))
    url = (tmp_path / "lake").as_uri()

    def compacted(*told: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["--location", url, "compact", "--json", *told]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with tidelog.connect(url, create=True) as lake:
        files = str(tmp_path / "in" / "*.jsonl")
        (tmp_path / "in").mkdir()
        for tick in range(3):
            rows = [json.dumps({"k": n, "v": f"{tick}"}) for n in range(2_000)]
            (tmp_path / "in" / f"{tick}.jsonl").write_text("\n".join(rows) + "\n")
            if not tick:
                lake.sources.create(
                    tidelog.SourceSpec(name="c", files=files, envelope="upsert", key=("k",))
                )
            lake.sources.ingest("c")
        before = lake.collection("c").snapshot().to_arrow().sort_by("k")

        compacted("c", "--engine", "spark", "--full")
        assert started == [], "what is small needs no Spark"
        (tmp_path / "in" / "9.jsonl").write_text('{"k": 7, "v": "9"}\n')
        lake.sources.ingest("c")
        monkeypatch.setattr(merger, "LEAST_BYTES", 1)
        (done,) = compacted("c", "--full", "--master", "local[2]", "--conf", "spark.x=1")
        after = lake.collection("c").snapshot().to_arrow().sort_by("k")
    assert started == [("local[2]", {"spark.x": "1"}), ("stopped", {})]
    assert done["merges"] >= 1
    assert before.column("k").equals(after.column("k"))
    assert [v for v in after.column("v").to_pylist() if v != "2"] == ["9"]
