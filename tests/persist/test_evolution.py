"""Schema evolution: permitted changes, the handles still served, and reads of old parts (T64)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.shards import Place, in_memory, merge_away
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    CorruptionError,
    DataDiffers,
    SchemaEvolved,
    SchemaIncompatible,
    UsageError,
)
from tidelog.persist.format.schema import ShardSchema, shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.merger import merger_of
from tidelog.persist.maintenance.merging import decide_merge, plan_full_merge
from tidelog.persist.maintenance.scrubber import scrub
from tidelog.persist.read.opened import PartOpener
from tidelog.persist.read.pieces import SnapshotQuery, changes_in_pieces, opener_names
from tidelog.persist.read.splits import read_split
from tidelog.persist.read.sweep import pieces_by_key
from tidelog.persist.states.batch import make_batch
from tidelog.persist.states.evolution import EvolveResult, EvolveVerdict
from tidelog.persist.states.transition import Verdict

TYPES: dict[str, pa.DataType] = {
    "k": pa.int64(), "a": pa.string(), "b": pa.int64(), "c": pa.float64(),
    "d": pa.timestamp("us"), "e": pa.list_(pa.field("item", pa.int64())),
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "a": [None, "x", "y"], "b": [None, 1, 2], "c": [None, 0.5], "e": [None, [1]],
}  # fmt: skip


def columns(names: str) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in names])


def shaped(names: str) -> ShardSchema:
    return shard_schema(columns(names), key=["k"])


def rows(names: str, *found: tuple[Any, ...]) -> pa.Table:
    """Return updates: the columns, then time and diff."""
    named = [*names, "_time", "_diff"]
    data = [dict(zip(named, row, strict=True)) for row in found]
    return pa.Table.from_pylist(data, schema=shaped(names).updates)


async def read(shard: Shard, as_of: int) -> list[tuple[Any, ...]]:
    table = await (await shard.snapshot(as_of)).to_arrow(consolidated=True)
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


async def grown(place: Place, *, inline: bool = True) -> Shard:
    """Return a shard with columns k, a that evolved to k, a, b, with a part of each schema."""
    shard = place.shard(schema=shaped("ka"))
    many = [(n, "x", 0, 1) for n in range(1 if inline else 3_000)]
    await shard.compare_and_append(rows("ka", *many), 0, 1)
    await shard.evolve_schema(columns("kab"))
    later = place.shard(schema=None)
    await later.refresh()
    await later.compare_and_append(rows("kab", (7_000, "y", 1, 1, 1)), 1, 2)
    return later


async def test_t64_a_schema_evolves_from_the_one_that_was_expected(place: Place) -> None:
    """If two writers evolve a schema concurrently, one succeeds and the other gets MISMATCH."""
    shard = place.shard(schema=shaped("ka"))
    await shard.compare_and_append(rows("ka", (1, "x", 0, 1)), 0, 1)
    other = place.shard(schema=None)

    first = await shard.evolve_schema(columns("kab"), expected=0)
    second = await other.evolve_schema(columns("kac"), expected=0)
    again = await other.evolve_schema(columns("kab"), expected=0)

    assert first == EvolveResult(EvolveVerdict.EVOLVED, 1)
    assert second == EvolveResult(EvolveVerdict.MISMATCH, 1)
    assert again == EvolveResult(EvolveVerdict.ALREADY, 1)
    assert [schema.names for schema in await other.schemas()] == [["k", "a"], ["k", "a", "b"]]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (columns("a"), "the key column 'k' would be dropped"),
        (columns("kba"), "another order"),
        (pa.schema([("k", pa.int64()), ("a", pa.int64())]), "would change"),
        (pa.schema([*columns("ka"), pa.field("n", pa.int64(), nullable=False)]), "is not nullable"),
        (pa.schema([*columns("ka"), ("B", pa.int64())]), "an earlier schema used"),
    ],
)
async def test_t64_what_a_schema_cannot_become_is_refused_with_what_it_can(
    wanted: pa.Schema, why: str
) -> None:
    """A change must not give stored rows another meaning. The error lists the permitted ones."""
    shard = in_memory().shard(schema=shaped("kab"))
    await shard.compare_and_append(rows("kab", (1, "x", 1, 0, 1)), 0, 1)
    await shard.evolve_schema(columns("ka"))

    with pytest.raises(SchemaIncompatible, match=why) as caught:
        await shard.evolve_schema(wanted)

    assert "may drop columns outside the key" in str(caught.value)
    assert (await shard.refresh()).schema_id == 1


async def test_t64_a_shard_without_a_schema_or_an_end_does_not_evolve() -> None:
    """A shard cannot evolve before its first schema, nor after it is finished."""
    shard = in_memory().shard(schema=shaped("ka"))

    with pytest.raises(UsageError, match="has no schema yet"):
        await shard.evolve_schema(columns("kab"))
    await shard.compare_and_append(None, 0, None)
    with pytest.raises(UsageError, match="is finished"):
        await shard.evolve_schema(columns("kab"))


@pytest.mark.parametrize("inline", [True, False])
async def test_t64_old_parts_are_read_with_nulls_by_every_path(place: Place, inline: bool) -> None:
    """Every read path fills a column added later with nulls."""
    shard = await grown(place, inline=inline)
    count = 1 if inline else 3_000
    snapshot = await shard.snapshot(1)
    schema = snapshot.schema
    opener = PartOpener(
        store=shard.store, clock=SwiftClock(), schema=schema, names=opener_names(schema, ["b"])
    )
    wanted = SnapshotQuery(as_of=1, columns=("k", "a", "b"), box={})
    boxed = SnapshotQuery(as_of=1, columns=("a",), box={"b": (1, 1)})

    contents = await read(shard, 1)
    split = await read_split(snapshot.splits(1)[0], store=shard.store, clock=SwiftClock())
    pieces = [t async for t in pieces_by_key(snapshot.parts, wanted, opener)]
    ones = [t async for t in pieces_by_key(snapshot.parts, boxed, opener)]
    changes = [t async for t in changes_in_pieces(snapshot.parts, wanted, opener)]
    heard = await anext(shard.listen(0))

    assert len(contents) == count + 1
    assert (0, "x", None, 1) in contents
    assert (7_000, "y", 1, 1) in contents
    assert split.column("b").null_count == count
    assert sum(t.column("b").null_count for t in pieces) == count
    assert [t.column("a").to_pylist() for t in ones if t.num_rows] == [["y"]]
    assert sum(t.column("b").null_count for t in changes) == count
    assert heard.updates.column("b").to_pylist() == [1]


async def test_t64_a_reader_is_served_or_told_that_its_column_is_gone(place: Place) -> None:
    """A reader whose column was dropped gets SchemaEvolved, never rows without that column."""
    shard = await grown(place)
    old, new = place.shard(schema=shaped("ka")), place.shard(schema=shaped("kab"))
    early = await old.snapshot(1)

    assert await read(old, 1) == [(0, "x", 1), (7_000, "y", 1)]
    await shard.evolve_schema(columns("kb"))
    with pytest.raises(SchemaEvolved, match="column 'a' was dropped"):
        await old.snapshot(1)
    with pytest.raises(SchemaEvolved, match="column 'a' was dropped"):
        await anext(new.listen(0))
    assert (await early.to_arrow()).num_rows == 2
    with pytest.raises(
        UsageError, match=r"has the columns .*but it was opened with the columns .*c double"
    ):
        await place.shard(schema=shaped("kc")).snapshot(1)


@pytest.mark.parametrize("names", ["ka", None])
async def test_t64_a_snapshot_that_is_planned_again_names_the_dropped_column(
    place: Place, names: str | None
) -> None:
    """An old snapshot raises SchemaEvolved after a merge: the parts lack its column."""
    shard = await grown(place, inline=False)
    early = await place.shard(schema=shaped(names) if names else None).snapshot(1)
    await shard.evolve_schema(columns("kb"))
    await shard.hold("h")
    await merge_away(shard)

    with pytest.raises(SchemaEvolved, match="column 'a' was dropped"):
        await early.to_arrow()


@pytest.mark.parametrize("names", [None, "kab"])
async def test_t64_a_snapshot_that_is_planned_again_has_its_own_columns(
    place: Place, names: str | None
) -> None:
    """A merge rewrites rows under a newer schema. An old snapshot still returns its own columns."""
    shard = await grown(place, inline=False)
    reader = place.shard(schema=shaped(names) if names else None)
    early = [await reader.snapshot(1), await reader.snapshot(1, where="k >= 2999")]
    batched = await reader.snapshot(1)
    await shard.evolve_schema(columns("kabc"))
    await shard.hold("h")
    await merge_away(shard)

    whole, some = [await one.to_arrow() for one in early]
    assert whole.column_names == ["k", "a", "b", "_diff"]
    assert whole.num_rows == 3_001
    assert some.column("k").to_pylist() == [2_999, 7_000]
    batches = [batch async for batch in batched.to_batches()]
    assert sum(batch.num_rows for batch in batches) == 3_001
    assert {tuple(batch.schema.names) for batch in batches} == {("k", "a", "b", "_diff")}


async def test_a_handle_without_a_schema_writes_by_the_one_that_is_there(place: Place) -> None:
    """It takes the stored schema on its first write, and raises on a new shard."""
    await grown(place)
    done = await place.shard(schema=None).compare_and_append(rows("kab", (9, "z", 9, 2, 1)), 2, 3)
    assert done.verdict is Verdict.COMMITTED
    assert (
        await place.shard(schema=None).append(rows("kab", (9, "z", 9, 3, 1)), 3, 4)
    ).verdict is Verdict.COMMITTED
    assert (9, "z", 9, 2) in await read(place.shard(schema=None), 3)

    with pytest.raises(UsageError, match="open it with its schema"):
        await place.shard(schema=None, name="none").compare_and_append(
            rows("kab", (9, "z", 9, 2, 1)), 2, 3
        )


async def test_t64_a_writer_of_an_earlier_schema_is_refused(place: Place) -> None:
    """The writer would retract rows by its own columns, and cancel nothing."""
    shard = await grown(place)
    old = place.shard(schema=shaped("ka"))

    with pytest.raises(SchemaEvolved, match="open the table, collection or shard again"):
        await old.compare_and_append(rows("ka", (0, "x", 2, -1)), 2, 3)
    assert (await shard.refresh()).upper == 2
    await old.refresh()
    with pytest.raises(SchemaEvolved):
        await old.append(rows("ka", (0, "x", 2, -1)), 2, 3)
    assert await old.hold("reads only") == Frontier.at(0)


async def test_t64_handles_follow_without_a_schema_or_when_they_evolve() -> None:
    """The handle that evolves the shard still writes. A stale one gets SchemaEvolved once."""
    place = in_memory()
    stale = await grown(place)
    evolving = place.shard(schema=shaped("kab"))
    await evolving.evolve_schema(columns("kb"))

    with pytest.raises(SchemaEvolved):
        await stale.compare_and_append(rows("kab", (9, "z", 9, 2, 1)), 2, 3)
    done = await evolving.compare_and_append(rows("kb", (8, 8, 2, 1)), 2, 3)
    again = await stale.compare_and_append(rows("kb", (9, 9, 3, 1)), 3, 4)

    assert (done.verdict, again.verdict) == (Verdict.COMMITTED, Verdict.COMMITTED)
    assert [p.schema_id for b in stale.state.batches for p in b.parts] == [0, 1, 2, 2]


async def test_t64_rows_are_of_the_schema_that_their_writing_began_with() -> None:
    """If the schema changes while rows arrive, the append raises SchemaEvolved."""
    place = in_memory()
    shard, other = await grown(place), place.shard(schema=None)

    async def slowly() -> AsyncIterator[pa.Table]:
        await other.evolve_schema(columns("kb"))
        await shard.refresh()
        yield rows("kab", (5, "z", 5, 2, 1))

    with pytest.raises(SchemaEvolved):
        await shard.compare_and_append(slowly(), 2, 3)


async def test_t64_merges_across_a_change_keep_contents_and_sums(place: Place) -> None:
    """A merge rewrites old rows in the newest columns and accounts for each in the sums."""
    shard = await grown(place, inline=False)
    await shard.evolve_schema(columns("kb"))
    before = await read(shard, 1)

    old = place.shard(schema=shaped("ka"))
    done = await old.compact(full=True)

    (batch,) = (await shard.refresh()).batches
    assert (done.merges, [p.schema_id for p in batch.parts]) == (1, [2])
    assert await read(shard, 1) == before
    assert shard.state.totals.sum_v == batch.sum_v


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("is_merged", [False, True])
async def test_t64_a_scrub_finds_nothing_wrong_with_an_older_schema(
    place: Place, inline: bool, is_merged: bool
) -> None:
    """The scrubber reports no damage in parts of older schemas, before and after a merge."""
    shard = await grown(place, inline=inline)
    lease = await place.shard(schema=None).lease()
    await shard.evolve_schema(columns("kb"))
    await shard.compare_and_append(rows("kb", (9_000, 2, 2, 1)), 2, 3)
    if is_merged:
        await shard.compact(full=True)
    found = await scrub(place.shard(schema=None))
    await lease.close()
    assert found.damages == []
    assert found.rows >= shard.state.totals.rows
    assert not found.unseen_t or is_merged


async def test_a_retry_is_answered_whatever_the_columns_are_by_now(place: Place) -> None:
    """A retry returns ALREADY, even if its rows no longer fit the schema, because they landed."""
    shard = place.shard(schema=shaped("ka"))
    first = rows("ka", (1, "x", 0, 1))
    await shard.compare_and_append(first, 0, 1, token=("w", 7))
    await place.shard(schema=None).evolve_schema(columns("kb"))
    reader = place.shard(schema=None)
    await reader.refresh()
    for again in (shard, place.shard(schema=shaped("ka")), reader, shard):
        done = await again.compare_and_append(first, 0, 1, token=("w", 7))
        assert (done.verdict, done.upper) == (Verdict.ALREADY, Frontier.at(1))
    with pytest.raises(SchemaEvolved):
        await shard.compare_and_append(rows("ka", (1, "x", 1, 1)), 1, 2, token=("w", 8))


async def test_a_merge_across_a_change_tells_rows_that_are_not_those_that_were_written() -> None:
    """A part with another sum under its own schema raises CorruptionError."""
    shard = await grown(in_memory())
    request = plan_full_merge(await shard.refresh())
    assert request is not None
    merger = merger_of(shard)
    found = [table async for table in merger.merge(request, request.parts)]
    filled = rows("kab", (0, "x", 5, 0, 1), (7_000, "y", 1, 1, 1))
    assert pa.concat_tables(found).num_rows == filled.num_rows
    other = make_batch(await shard.writer().write(filled), lower=0, upper=2)
    forged = msgspec.structs.replace(
        request.batches[0].parts[0], sum_v=bytes(15) + b"\1", schema_id=0
    )

    with pytest.raises(CorruptionError, match="differ from its inputs"):
        decide_merge(shard.state, request, other, merger.restated)
    with pytest.raises(CorruptionError, match="differ from its descriptor"):
        await merger.load(forged)


async def test_replicas_are_compared_in_the_newest_columns() -> None:
    """Sums depend on the schema, so the shard reads its older rows for the comparison."""
    shard = await grown(in_memory())
    everything = rows("kab", (0, "x", None, 0, 1), (7_000, "y", 1, 1, 1))

    assert (await shard.append(everything, 0, 2)).verdict is Verdict.ALREADY
    assert (await shard.append(everything.slice(1), 1, 2)).verdict is Verdict.ALREADY
    for first, second in ((None, 2), (0, 1)):
        other = rows("kab", (0, "x", first, 0, 1), (7_000, "y", second, 1, 1))
        with pytest.raises(DataDiffers):
            await shard.append(other, 0, 2)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abce")),
        st.tuples(st.just("drop"), st.sampled_from("abce")),
        st.tuples(st.just("write"), st.integers(0, 2**16)),
        st.tuples(st.just("merge"), st.booleans()),
        st.tuples(st.just("hold"), st.integers(0, 3)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
async def test_t64_any_evolution_reads_as_rows_that_always_had_the_newest_columns(
    steps: list[tuple[str, Any]],
) -> None:
    """The model keeps each row as a mapping of the newest columns."""
    place = in_memory()
    shard = place.shard(schema=shaped("k"))
    names, used, time = "k", set("k"), 1
    model: list[tuple[dict[str, Any], int, int]] = [({"k": 0}, 0, 1)]
    await shard.compare_and_append(rows("k", (0, 0, 1)), 0, 1)
    await shard.hold("h")
    for kind, given_ in steps:
        if kind == "add" and given_ not in used:
            names, used = names + given_, {*used, given_}
            await shard.evolve_schema(columns(names))
        elif kind == "drop" and given_ in names:
            names = names.replace(given_, "")
            await shard.evolve_schema(columns(names))
        elif kind == "write":
            row = {n: VALUES[n][given_ % len(VALUES[n])] for n in names if n != "k"}
            row["k"] = given_ % 3
            diff = -1 if given_ % 5 == 0 else 1
            await shard.compare_and_append(
                rows(names, (*(row[n] for n in names), time, diff)), time, time + 1
            )
            model.append((row, time, diff))
            time += 1
        elif kind == "merge":
            await shard.compact(full=given_)
        elif kind == "hold":
            await shard.move_hold("h", max(0, time - 1 - given_))
        since = shard.state.since or 0
        for as_of in {since, time - 1}:
            wanted: Counter[str] = Counter()
            for row, at, diff in model:
                if at <= as_of:
                    wanted[repr([row.get(n) for n in names])] += diff
            snapshot = await place.shard(schema=None).snapshot(as_of)
            found = (await snapshot.to_arrow(consolidated=True)).to_pylist()
            told = {repr([r[n] for n in names]): r["_diff"] for r in found}
            assert told == {row: count for row, count in wanted.items() if count}
            assert len(told) == len(found)
