"""Plans of ticks: each record is computed once, and messages of one key meet."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.decoding import info_of
from kit.shards import plain_part
from tidelog.collection.formats.lines import CsvDialect
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.ingest.compute import Job, Target
from tidelog.collection.ingest.envelope import DELETE, OWN, RANK, messages_schema
from tidelog.collection.source.binding import FileRange
from tidelog.collection.table.placement import buckets_of
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import shard_schema
from tidelog.spark.plan import (
    Share,
    TickPlan,
    TickSettings,
    cut_range,
    pack,
    plan_tick,
    share_out,
)
from tidelog.spark.task import hand_on

MIB = 1024 * 1024
TYPES: dict[str, pa.DataType] = {"k": pa.int64(), "v": pa.string()}
SCHEMA = shard_schema(pa.schema(TYPES), key=["k"])


def range_of(path: str, start: int, limit: int) -> FileRange:
    return FileRange(path=path, start=start, limit=limit)


def part_of(shard: str) -> Part:
    return plain_part(path=f"{shard}.parquet")


def job_of(
    sizes: Sequence[int], *, shards: int = 1, envelope: str = "upsert", format: str = "json"
) -> Job:
    source = info_of(url="file:///in", format=format, envelope=envelope, key=("k",))
    names = [f"shard{n}" for n in range(shards)]
    return Job(
        source=source,
        schema=SCHEMA.encoded,
        lower=0,
        upper=10,
        ranges=tuple(range_of(f"{n:04}", 0, size) for n, size in enumerate(sizes)),
        shards=tuple(
            Target(
                shard=n, write_epoch=0, may_inline=True, parts=(plain_part(path=f"{n}.parquet"),)
            )
            for n in names
        ),
        errors=Target(shard="errors", write_epoch=0, may_inline=True),
    )


def plan_of(job: Job, *, cores: int = 4, settings: TickSettings | None = None) -> TickPlan:
    return plan_tick(
        job, location_url="file:///lake", cores=cores, settings=settings or TickSettings()
    )


def test_a_small_tick_is_one_task() -> None:
    """A small tick runs as one task."""
    job = job_of([1_000] * 5, shards=3)
    plan = plan_of(job)

    assert plan == TickPlan((Share(location_url="file:///lake", job=job, places=(0, 1, 2)),))


def test_messages_of_one_key_need_a_second_stage_and_others_do_not() -> None:
    """Messages of one key meet in a second stage; rows that are only appended need none."""
    upsert = plan_of(job_of([64 * MIB]))
    appended = plan_of(job_of([64 * MIB], envelope="none"))

    assert len(upsert.shares) == len(upsert.finishes) == 4
    assert len(appended.shares) == 4
    assert not appended.finishes


def test_with_one_core_and_one_task_there_is_no_second_stage() -> None:
    """A single task hands no messages on."""
    assert not plan_of(job_of([60 * MIB]), cores=1).finishes


def test_a_task_is_never_larger_than_fits_into_memory() -> None:
    """With few cores, twenty files of 64 MiB still become at least twenty tasks."""
    plan = plan_of(job_of([64 * MIB] * 20), cores=2)

    assert len(plan.shares) >= 20


@pytest.mark.parametrize(("shards", "tasks"), [(1, 4), (3, 4), (4, 4), (5, 4), (64, 4)])
def test_second_stage_shares_carry_their_own_shards_and_no_others(shards: int, tasks: int) -> None:
    """A second-stage task carries only its own shards, so that its size does not grow with them."""
    plan = plan_of(job_of([64 * MIB], shards=shards), cores=tasks)
    alone = [place for share in plan.finishes for place in share.places]

    assert set(alone) == set(range(shards))
    for share in plan.finishes:
        assert [t.shard for t in share.job.shards] == [f"shard{place}" for place in share.places]
        assert [p.path for t in share.job.shards for p in t.parts] == [
            f"shard{place}.parquet" for place in share.places
        ]
        may_inline = {t.may_inline for t in share.job.shards}
        assert may_inline == {len(alone) == shards}
    for share in plan.shares:
        assert not any(t.parts or t.may_inline for t in share.job.shards)


@given(sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=30), tasks=st.integers(1, 12))
def test_pieces_cover_all_ranges_in_order_and_once(sizes: list[int], tasks: int) -> None:
    """Each byte of each range is in exactly one piece."""
    job = job_of(sizes)
    settings = TickSettings(range_bytes=10)
    shares = list(share_out(job, tasks, settings))
    covered = [(p.rank, p.low, p.high) for share in shares for p in share]

    assert 1 <= len(shares) <= tasks
    assert [rank for rank, _, _ in covered] == sorted(rank for rank, _, _ in covered)
    for rank, size in enumerate(sizes):
        pieces = [(low, high) for r, low, high in covered if r == rank]
        assert pieces[0][0] == 0
        assert pieces[-1][1] == size
        assert all(one[1] == next_[0] for one, next_ in pairwise(pieces))


@given(sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=30), tasks=st.integers(1, 12))
def test_a_task_reads_each_range_once(sizes: list[int], tasks: int) -> None:
    """Adjacent pieces of a range become one piece."""
    for share in share_out(job_of(sizes), tasks, TickSettings(range_bytes=10)):
        ranks = [p.rank for p in share]
        assert len(set(ranks)) == len(ranks)


def test_what_has_line_ends_in_quotes_is_not_cut() -> None:
    """A range with quoted line ends is not cut: a reader in its middle cannot parse it."""
    job = job_of([64 * MIB], format="csv")
    source = msgspec.structs.replace(job.source, csv=CsvDialect(multiline=True))
    (share,) = share_out(msgspec.structs.replace(job, source=source), 4, TickSettings())

    assert [(p.low, p.high) for p in share] == [(0, 64 * MIB)]


@given(start=st.integers(0, 300), size=st.integers(1, 300), count=st.integers(1, 12))
def test_a_range_with_sums_is_cut_behind_the_first_byte_of_a_block(
    start: int, size: int, count: int
) -> None:
    """Cuts are one byte after a block's start: the look-back must read no other piece's block."""
    found = msgspec.structs.replace(
        range_of("a", start, start + size), sums=b"x" * 16, block_bytes=16
    )
    cuts = cut_range(found, count)

    assert cuts[0] == start
    assert cuts[-1] == start + size
    assert cuts == sorted(set(cuts))
    assert all(cut % 16 == 1 for cut in cuts[1:-1])


@given(weights=st.lists(st.floats(0, 1e9), min_size=1, max_size=50), count=st.integers(1, 20))
def test_packing_keeps_order_and_leaves_nothing_out(weights: list[float], count: int) -> None:
    """Packing keeps the order of paths, which decides between messages of one key."""
    runs = pack(weights, count)

    assert 1 <= len(runs) <= count
    assert [n for first, limit in runs for n in range(first, limit)] == list(range(len(weights)))


@pytest.mark.parametrize(("shards", "tasks"), [(1, 5), (3, 2), (3, 3), (3, 7)])
def test_messages_go_to_the_task_that_writes_their_shard(shards: int, tasks: int) -> None:
    """A message goes to the task of its key's shard, the same shard as in the local engine."""
    job = job_of([64 * MIB], shards=shards)
    settings = TickSettings(task_bytes_min=64 * MIB // tasks)
    plan = plan_of(job, cores=tasks, settings=settings)
    keys = list(range(200))
    messages = pa.table(
        {"k": keys, "v": ["x"] * 200, "_time": keys, OWN: keys, RANK: keys, OFFSET: keys}
    ).append_column(DELETE, pa.array([False] * 200))
    messages = messages.cast(messages_schema(SCHEMA))
    placed = buckets_of(messages, job.data_schema, len(job.shards))
    expected = dict(zip(keys, placed.tolist(), strict=True))

    seen: dict[int, int] = {}
    for partition, handed in hand_on(messages, plan.shares[0]):
        with pa.ipc.open_stream(handed.data) as stream:
            for key in stream.read_all().column("k").to_numpy().tolist():
                assert key not in seen
                seen[key] = partition
                assert handed.place == expected[key]
                assert handed.place in plan.finishes[partition].places
    assert set(seen) == set(keys)


def test_a_share_is_a_plain_value() -> None:
    """A share survives pickling, since it crosses to other machines."""
    for share in plan_of(job_of([64 * MIB])).shares:
        assert pickle.loads(pickle.dumps(share)) == share
