"""A collection as a source: its updates at their times, decoded or as they are."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.clocks import OneThread, SwiftClock
from kit.dying import DiesWriting
from kit.sources import bind, compact, ingest, run_once
from tidelog.collection.collection import Collection
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.source.followed import FollowedHead, hold_of
from tidelog.collection.spec_types import SourceSpec
from tidelog.collection.table_handle import Table
from tidelog.core.clock import SystemClock
from tidelog.errors import GoneError, LocationError, NoSuchCollection, UsageError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing.faulty import FaultyStore

RAW = "k bigint, v varchar"


async def location_on(store: Store | None = None, clock: SystemClock | None = None) -> Location:
    store = store or MemoryStore(name="memory://")
    clock = clock or SwiftClock()
    return await open_location("memory://", create=True, clock=clock, store=store)


async def raw_lake(*values: str, **asked: Any) -> tuple[Location, Table]:
    """Return a lake with the table ``raw`` of some texts by number."""
    location = await location_on()
    table = await location.tables.create("raw", RAW, key=["k"], **asked)
    if values:
        await table.upsert([{"k": n, "v": value} for n, value in enumerate(values)])
    return location, table


async def followed(location: Location, name: str = "d", of: str = "raw", **asked: Any) -> None:
    settings = {"collection": of, **asked.pop("settings", {})}
    spec = SourceSpec(name=name, kind="collection", settings=settings, **asked)
    await location.sources.create(spec)


async def rows_at(location: Location, name: str, time: int | None = None) -> list[str]:
    """Return the rows of a collection at a time, with their counts."""
    table = await (await location.collection(name)).consolidated(time)
    return sorted(map(repr, table.to_pylist()))


async def hold_at(location: Location, name: str = "d") -> list[int]:
    """Return the times of the hold of a source on each shard of ``raw``."""
    info, _ = await location.sources.find(name)
    raw = await location.collection("raw")
    await raw.refresh()
    holds = [shard.state.holds.get(hold_of(info)) for shard in raw.all_shards]
    return [one.frontier.time for one in holds if one is not None]


async def change(table: Table, dice: random.Random) -> int:
    """Change a table at random; return the time."""
    if dice.random() < 0.3:
        return await table.delete(keys=[dice.randrange(6)])
    rows = {dice.randrange(6): dice.choice("abc") for _ in range(3)}
    return await table.upsert([{"k": k, "v": v} for k, v in rows.items()])


@pytest.mark.parametrize("seed", range(4))
async def test_a_chain_of_three_equals_the_first_at_each_time(seed: int) -> None:
    """Rows come and go at random, between merges. Each collection has them at the same times."""
    dice = random.Random(seed)
    location, table = await raw_lake(shards=1 + seed % 2)
    await followed(location, "d")
    await followed(location, "e", of="d", shards=2)
    times = []
    for _ in range(10):
        times += [await change(table, dice) for _ in range(dice.randrange(1, 4))]
        for name in dice.sample(["d", "e"], dice.randrange(3)):
            await ingest(location, name, bytes_max=dice.choice([1, 10_000]))
        if dice.random() < 0.3:
            await compact(location)
    for name in ("d", "e"):
        await run_once(await location.sources.ingester(name))

    for time in times:
        expected = await rows_at(location, "raw", time)
        assert await rows_at(location, "d", time) == expected
        assert await rows_at(location, "e", time) == expected
    whole = await (await location.collection("raw")).changes(since=0)
    parts = await (await location.collection("e")).changes(since=0)
    assert sorted(map(repr, parts.to_pylist())) == sorted(map(repr, whole.to_pylist()))


@pytest.mark.parametrize("seed", range(3))
async def test_the_rows_are_the_decoding_of_the_raw_rows_at_each_time(seed: int) -> None:
    """Texts that are no json are left out at each time; each is a bad row when it comes."""
    dice = random.Random(seed)
    texts = ['{"n": 1}', '{"n": 2}', ' {"n":1}', '{"n": "x"}', "no json", '{"n": null}']
    location, table = await raw_lake(retain_ms=dice.choice([None, 1]))
    await followed(location, format="json", schema="n bigint")
    expected: dict[int, Counter[object]] = {}
    held: dict[int, str] = {}
    for _ in range(12):
        rows = {dice.randrange(5): dice.choice(texts) for _ in range(2)}
        gone = [] if dice.random() < 0.6 else [dice.randrange(5)]
        held |= rows
        time = await table.upsert([{"k": k, "v": v} for k, v in rows.items()])
        expected[time] = Counter(n for text in held.values() for n in _decoded(text))
        if gone:
            held.pop(gone[0], None)
            time = await table.delete(keys=gone)
            expected[time] = Counter(n for text in held.values() for n in _decoded(text))
        if dice.random() < 0.4:
            await compact(location)
        if dice.random() < 0.4:
            await ingest(location, "d", bytes_max=dice.choice([1, 10_000]))
    await run_once(await location.sources.ingester("d"))

    derived = await location.collection("d")
    for time, counts in expected.items():
        found = (await derived.consolidated(time)).to_pylist()
        assert {row["n"]: row["_diff"] for row in found} == dict(counts)
    bad = (await (await location.collection("d_errors")).consolidated()).to_pylist()
    assert bad
    assert {row["text"] for row in bad} <= {'{"n": "x"}', "no json"}
    assert {row["offset"] for row in bad} <= {*expected}


def _decoded(text: str) -> list[object]:
    """Return the value of a good raw row; none of a bad one."""
    with suppress(ValueError):
        value = json.loads(text)["n"]
        return [] if isinstance(value, str) else [value]
    return []


async def test_rows_taken_back_are_taken_back_several_at_a_time() -> None:
    """Decoded rows disappear at the time at which the raw rows do; equal rows are counted."""
    location, table = await raw_lake('{"n": 1}', '{"n": 1}', '{"n": 2}')
    await followed(location, format="json")
    await run_once(await location.sources.ingester("d"))
    assert await rows_at(location, "d") == [
        repr({"n": 1, "_diff": 2}),
        repr({"n": 2, "_diff": 1}),
    ]
    await table.delete(keys=[0, 2])
    await table.upsert([{"k": 1, "v": '{"n":   1}'}])
    await run_once(await location.sources.ingester("d"))

    assert await rows_at(location, "d") == [repr({"n": 1, "_diff": 1})]
    found = (await (await location.collection("d")).changes(since=0)).to_pylist()
    assert len({row["_time"] for row in found}) == 2  # The rewritten text has the same row.


async def test_a_fault_of_the_decoder_is_mended_without_the_files(tmp_path: Path) -> None:
    """The raw collection has the lines, so a rendition decodes them by other columns."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "1.log"
    file.write_text('{"code": "007"}\n{"code": "8"}\nno json\n')
    location = await open_location(str(tmp_path / "lake"), create=True)
    spec = SourceSpec(name="raw", files=str(tmp_path / "in"), format="text")
    await location.sources.create(spec)
    await run_once(await location.sources.ingester("raw"))
    file.unlink()
    await followed(location, format="json", schema="code bigint")
    await run_once(await location.sources.ingester("d"))
    raw = (await (await location.collection("raw")).changes(since=0)).to_pylist()
    bad = (await (await location.collection("d_errors")).changes(since=0)).to_pylist()
    assert {row["text"] for row in bad} == {'{"code": "007"}', '{"code": "8"}', "no json"}
    assert {(row["file"], row["offset"]) for row in bad} == {("raw", raw[0]["_time"])}

    await location.renditions.create(RenditionSpec(name="d2", schema="code varchar"), of="d")
    await run_once(await location.sources.ingester("d2"))
    time = await location.renditions.handover("d", to="d2")
    (tmp_path / "in" / "2.log").write_text('{"code": "09"}\n')
    await run_once(await location.sources.ingester("raw"))
    await run_once(await location.sources.ingester("d"))

    codes = [repr({"code": code, "_diff": 1}) for code in ("007", "09", "8")]
    assert await rows_at(location, "d") == codes
    assert await rows_at(location, "d", time - 1) == []
    assert len((await (await location.collection("d_errors")).consolidated()).to_pylist()) == 1


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_rendition_has_the_rows_of_the_raw_collection_at_their_times(keeps: bool) -> None:
    """It equals the first one at each time, with kept bindings or without."""
    location, table = await raw_lake('{"n": 9}')
    await followed(location, format="json", schema="n bigint", keep_bindings=keeps)
    times = []
    for n in range(5):
        times.append(await table.upsert([{"k": n % 3, "v": json.dumps({"n": n})}]))
        await ingest(location, "d")
    spec = RenditionSpec(name="d2", schema="n double", shards=2)
    facts = await location.renditions.create(spec, of="d")
    assert facts.shares_bindings == keeps
    await run_once(await location.sources.ingester("d2"))

    for time in times:
        wide = (await (await location.collection("d2")).consolidated(time)).to_pylist()
        whole = (await (await location.collection("d")).consolidated(time)).to_pylist()
        assert sorted(row["n"] for row in wide) == sorted(row["n"] for row in whole)
        assert wide
    second, _ = await location.sources.find("d2")
    await location.renditions.drop("d2")
    assert await hold_at(location)
    raw = await location.collection("raw")
    await raw.refresh()
    assert all(hold_of(second) not in shard.state.holds for shard in raw.all_shards)


async def test_the_hold_moves_with_the_rows_and_ends_with_the_source() -> None:
    """Merges of the raw collection keep the times after the hold, and no earlier ones for it."""
    location, table = await raw_lake("a", retain_ms=1)
    await followed(location)
    first = await hold_at(location)
    times = [await change(table, random.Random(n)) for n in range(4)]
    expected = [await rows_at(location, "raw", time) for time in times]
    await compact(location)
    await ingest(location, "d")
    assert max(first) < min(await hold_at(location))
    assert [await rows_at(location, "d", time) for time in times] == expected
    assert len({tuple(one) for one in expected}) > 1

    await followed(location, "late")
    await ingest(location, "late")
    assert await rows_at(location, "late") == await rows_at(location, "raw")
    await location.sources.drop("d")
    raw = await location.collection("raw")
    await raw.refresh()
    info, _ = await location.sources.find("late")
    names = {name for shard in raw.all_shards for name in shard.state.holds}
    assert {name for name in names if name.startswith("source-")} == {hold_of(info)}


async def test_kept_bindings_keep_all_times_of_the_raw_collection() -> None:
    """So a check computes each tick again, also after full merges."""
    location, table = await raw_lake("a", retain_ms=1)
    await followed(location, keep_bindings=True)
    before = await hold_at(location)
    for n in range(4):
        await change(table, random.Random(n))
        await ingest(location, "d")
    await compact(location)

    assert await hold_at(location) == before
    found = await location.sources.check("d")
    assert found.bindings == 4
    assert found.first is None
    assert not found.unchecked


async def test_two_ingesters_commit_the_same_rows() -> None:
    """Both tick at the same time. Their updates are equal, and each is there once."""
    location, table = await raw_lake("a", "b", shards=2)
    await followed(location, shards=2)
    ingesters = [await location.sources.ingester("d", bytes_max=1) for _ in range(2)]
    for n in range(6):
        await change(table, random.Random(n))
        await asyncio.gather(*(run_once(one) for one in ingesters))

    assert await rows_at(location, "d") == await rows_at(location, "raw")
    found = await (await location.collection("d")).changes(since=0)
    whole = await (await location.collection("raw")).changes(since=0)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, whole.to_pylist()))


@pytest.mark.parametrize("landed", [False, True])
async def test_an_ingester_that_dies_at_any_write_loses_no_row(landed: bool) -> None:
    """The next one continues with the same times, also if merges come in between."""
    writes = 0
    for failing in range(100):
        store = MemoryStore(name="memory://")
        location = await location_on(store, OneThread())
        table = await location.tables.create("raw", RAW, key=["k"])
        await table.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
        await followed(location)
        await table.delete(keys=[1])
        process = DiesWriting(failing, landed)
        faulty = FaultyStore(store, toss=process.toss)
        with suppress(LocationError):
            await ingest(await location_on(faulty, OneThread()), "d", bytes_max=1)
        await compact(location)
        await run_once(await location.sources.ingester("d"))

        assert await rows_at(location, "d") == await rows_at(location, "raw")
        if not process.died:
            break
        writes += 1
    assert 5 <= writes < 100


async def test_a_binding_is_obeyed_by_the_next_ingester() -> None:
    """The times of a binding are fixed before its rows are read; merges do not change them."""
    location, table = await raw_lake("a", "b")
    await followed(location, keep_bindings=True)
    binding = await bind(await location.sources.ingester("d"))
    assert binding is not None
    times = [await change(table, random.Random(n)) for n in range(3)]
    await compact(location)
    await run_once(await location.sources.ingester("d"))

    recorded = list(await (await location.sources.ingester("d")).recorded(2**60))
    assert recorded[0].ranges == binding.ranges
    for time in times:
        assert await rows_at(location, "d", time) == await rows_at(location, "raw", time)


async def test_a_handover_of_the_raw_collection_is_crossed(tmp_path: Path) -> None:
    """At its time, rows that only the former rendition had are taken back."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"n": 1, "t": "x"}\n{"n": "a", "t": "y"}\n')
    location = await open_location(str(tmp_path / "lake"), create=True)
    spec = SourceSpec(name="raw", files=str(tmp_path / "in"), schema="n bigint, t varchar")
    await location.sources.create(spec)
    await followed(location)
    await run_once(await location.sources.ingester("raw"))
    await location.renditions.create(RenditionSpec(name="raw2", shards=2), of="raw")
    await run_once(await location.sources.ingester("raw2"))
    await ingest(location, "d")
    time = await location.renditions.handover("raw", to="raw2")
    (tmp_path / "in" / "2.jsonl").write_text('{"n": 3, "t": "z"}\n')
    await run_once(await location.sources.ingester("raw"))
    await run_once(await location.sources.ingester("d"))

    raw = await location.collection("raw")
    await raw.refresh()
    for at in (time - 1, time, raw.upper.time - 1):
        assert await rows_at(location, "d", at) == await rows_at(location, "raw", at)
    assert len(await rows_at(location, "d")) == 2


async def test_it_follows_and_is_ingested_with_all_sources() -> None:
    """A run that follows takes rows as they come; the status has the time that is reached."""
    location, table = await raw_lake("a")
    await followed(location)
    ticks = 0

    def stop() -> bool:
        return ticks >= 2

    def on_tick(_: object) -> None:
        nonlocal ticks
        ticks += 1

    ingester = await location.sources.ingester("d")
    running = asyncio.create_task(
        run_ingest(ingester, follow=True, interval_us=1_000, on_tick=on_tick, stop=stop)
    )
    await asyncio.sleep(0)
    await table.upsert([{"k": 7, "v": "later"}])
    await asyncio.wait_for(running, 20)
    await table.upsert([{"k": 8, "v": "last"}])
    await location.sources.ingest_all()
    status = await location.sources.status("d")

    assert await rows_at(location, "d") == await rows_at(location, "raw")
    raw = await location.collection("raw")
    await raw.refresh()
    assert status.reached == {"raw": raw.upper.time}
    assert (status.upper, status.left_bytes, status.bad) == (raw.upper.time, 0, 0)


async def test_an_idle_source_does_not_pass_the_raw_collection() -> None:
    """A tick without new rows does not complete times that the raw collection may still get."""
    location, table = await raw_lake("a")
    await followed(location)
    for _ in range(3):
        await run_once(await location.sources.ingester("d"))
    derived = await location.collection("d")
    await derived.refresh()
    time = await table.upsert([{"k": 1, "v": "b"}])
    assert derived.upper.time <= time
    await run_once(await location.sources.ingester("d"))
    assert await rows_at(location, "d", time) == await rows_at(location, "raw", time)


async def test_a_raw_collection_that_was_dropped_stops_the_source() -> None:
    """Its rows stay. A new collection of the same name is another one."""
    location, _ = await raw_lake("a")
    await followed(location)
    await run_once(await location.sources.ingester("d"))
    await location.tables.drop("raw")
    with pytest.raises(GoneError, match="'raw', which the source 'd' reads, was dropped"):
        await run_once(await location.sources.ingester("d"))
    await location.tables.create("raw", RAW, key=["k"])
    with pytest.raises(GoneError, match="was dropped"):
        await run_once(await location.sources.ingester("d"))

    assert "was dropped" in ((await location.sources.status("d")).trouble or "")
    assert len(await rows_at(location, "d")) == 1
    await location.sources.drop("d")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"of": "d"}, "would read its own rows"),
        ({"envelope": "upsert", "key": ("k",)}, "with their times: remove envelope="),
        ({"time_column": "k"}, "remove time_column="),
        ({"evolve": True}, "remove evolve="),
        ({"settings": {"column": "v"}}, "needs format="),
        ({"settings": {"columns": "v"}}, "not a setting"),
        ({"format": "parquet"}, "must be one of rows, json, csv, avro, text"),
        ({"format": "json", "settings": {"column": "x"}}, "not a column of 'raw'"),
        ({"format": "json", "settings": {"column": "k"}}, "cannot be decoded"),
        ({"format": "json", "of": "wide"}, "2 columns of text or bytes"),
        ({"schema": "x bigint"}, "not a column of this source"),
    ],
)
async def test_a_source_that_cannot_be_exact_is_refused(asked: dict[str, Any], told: str) -> None:
    """The error names the option, and nothing is created."""
    location, _ = await raw_lake('{"n": 1}')
    await location.tables.create("wide", "a varchar, b blob")
    with pytest.raises(UsageError, match=told):
        await followed(location, **asked)
    assert await location.sources.list() == []


async def test_a_cycle_and_a_missing_collection_are_refused() -> None:
    """A collection cannot feed itself over others, also after a drop."""
    location, _ = await raw_lake()
    with pytest.raises(NoSuchCollection, match="'none', which the source would read"):
        await followed(location, of="none")
    await followed(location, "d")
    await followed(location, "e", of="d")
    await location.sources.drop("d")
    with pytest.raises(UsageError, match="'d' reads 'e' reads 'd'"):
        await followed(location, "d", of="e")


async def test_columns_stay_and_times_are_those_of_the_raw_collection() -> None:
    """An alteration is refused, and so is a request for the time of a message."""
    location, _ = await raw_lake("a")
    await followed(location)
    with pytest.raises(UsageError, match="its columns stay"):
        await location.sources.alter("d", add="x bigint")
    with pytest.raises(UsageError, match="times of the collection that it reads"):
        await location.sources.get_binding("d", "raw", 0)


@pytest.mark.parametrize("format", ["csv", "text"])
async def test_bytes_are_decoded_by_each_format(format: str) -> None:
    """The column may be bytes; the columns of csv are inferred from the rows that are there."""
    location = await location_on()
    table = await location.tables.create("raw", "a bigint, b blob")
    await table.insert([{"a": 1, "b": b"1,x"}, {"a": 2, "b": b"2,y"}, {"a": 3, "b": None}])
    columns = "n bigint, t varchar" if format == "csv" else None
    await followed(location, format=format, schema=columns)
    await run_once(await location.sources.ingester("d"))

    found = (await (await location.collection("d")).consolidated()).drop_columns(["_diff"])
    values = {"n": 1, "t": "x"} if format == "csv" else {"line": "1,x"}
    assert values in found.to_pylist()
    assert found.num_rows == 2
    errors: Collection = await location.collection("d_errors")
    assert [row["reason"] for row in (await errors.consolidated()).to_pylist()] == [
        "the record is empty"
    ]


async def test_values_of_all_types_stay_as_they_are() -> None:
    """Rows are not decoded again: json text, NaN, nested values and odd dates are the same."""
    location = await location_on()
    columns = (
        "j json, d double, f float, l int[], s struct(a int, b varchar), t timestamptz, "
        "x blob, u utinyint, m decimal(30, 3), day date, v varchar"
    )
    table = await location.tables.create("raw", columns)
    schema = (await location.collection("raw")).schema.data
    rows = [
        {"j": '{"a": 1,  "a": 2}', "d": float("nan"), "l": [1, None], "s": {"a": 1, "b": ""}},
        {"j": '"text"', "d": -0.0, "f": float("-inf"), "x": b"\x00\xff", "u": 255, "l": []},
        {"t": datetime(1, 1, 1, tzinfo=UTC), "day": date(9999, 12, 31), "v": " \n\x00 "},
        {},
        {},
    ]
    await table.insert(pa.Table.from_pylist(rows, schema=schema))
    await followed(location)
    await followed(location, "e", of="d", shards=3)
    for name in ("d", "e"):
        await run_once(await location.sources.ingester(name))
        assert await rows_at(location, name) == await rows_at(location, "raw")
        assert not await rows_at(location, f"{name}_errors")
    assert len(await rows_at(location, "e")) == 4


async def test_a_selection_of_columns_is_converted() -> None:
    """With other types than the raw collection has, rows that do not fit are bad."""
    location, table = await raw_lake("1", "x", "1")
    await followed(location, schema="v bigint")
    await run_once(await location.sources.ingester("d"))
    assert await rows_at(location, "d") == [repr({"v": 1, "_diff": 2})]
    await table.delete(keys=[0, 1])
    await run_once(await location.sources.ingester("d"))
    assert await rows_at(location, "d") == [repr({"v": 1, "_diff": 1})]
    (error,) = (await (await location.collection("d_errors")).consolidated()).to_pylist()
    assert (error["file"], error["_diff"]) == ("raw", 1)


async def test_a_handover_to_another_type_stops_the_source(tmp_path: Path) -> None:
    """The source has the type of the former rendition, so no difference can follow."""
    (tmp_path / "1.jsonl").write_text('{"n": 1}\n')
    location = await location_on()
    spec = SourceSpec(name="raw", files=str(tmp_path), schema="n bigint")
    await location.sources.create(spec)
    await followed(location)
    await run_once(await location.sources.ingester("raw"))
    await run_once(await location.sources.ingester("d"))
    await location.renditions.create(RenditionSpec(name="raw2", schema="n double"), of="raw")
    await run_once(await location.sources.ingester("raw2"))
    await location.renditions.handover("raw", to="raw2")
    (tmp_path / "2.jsonl").write_text('{"n": 3}\n')
    await run_once(await location.sources.ingester("raw"))
    with pytest.raises(GoneError, match="has another type for it"):
        await run_once(await location.sources.ingester("d"))

    assert await rows_at(location, "d") == [repr({"n": 1, "_diff": 1})]


async def test_a_direct_table_and_a_source_without_rows_are_followed(tmp_path: Path) -> None:
    """The source waits until the raw collection has a complete time."""
    location = await location_on()
    table = await location.tables.create("direct", RAW, key=["k"], mode="direct")
    spec = SourceSpec(name="raw", files=str(tmp_path), schema=RAW)
    await location.sources.create(spec)
    await followed(location)
    await followed(location, "e", of="direct")
    for name in ("d", "e"):
        assert (await run_once(await location.sources.ingester(name))).rows == 0
    times = [await change(table, random.Random(n)) for n in range(3)]
    (tmp_path / "1.jsonl").write_text('{"k": 1, "v": "a"}\n')
    await run_once(await location.sources.ingester("raw"))
    for name in ("d", "e"):
        await run_once(await location.sources.ingester(name))

    assert await rows_at(location, "d") == await rows_at(location, "raw") != []
    for time in times:
        assert await rows_at(location, "e", time) == await rows_at(location, "direct", time)


async def test_a_copy_has_the_rows_and_continues_from_the_raw_collection() -> None:
    """A rendition over other shards copies the rows, and those taken back later are taken back."""
    location, table = await raw_lake("a", "b", "c", retain_ms=1)
    await followed(location)
    await run_once(await location.sources.ingester("d"))
    await location.renditions.create(RenditionSpec(name="d2", shards=3, copy=True), of="d")
    await table.delete(keys=[1])
    await compact(location)
    for name in ("d2", "d"):
        await run_once(await location.sources.ingester(name))

    assert await rows_at(location, "d2") == await rows_at(location, "raw")
    assert (await location.renditions.diff("d", "d2")).num_rows == 0


async def test_without_kept_bindings_a_check_has_the_newest_tick_at_most() -> None:
    """Merges of the raw collection have moved earlier times, so a check cannot compare them."""
    location, table = await raw_lake("a", retain_ms=1)
    await followed(location, retain="1s")
    for n in range(4):
        await change(table, random.Random(n))
        await ingest(location, "d")
    await compact(location)
    with suppress(UsageError):
        assert (await location.sources.check("d")).first is None


def test_a_step_ends_with_a_batch_that_fits() -> None:
    """A step has about the given bytes, and at least one batch; the last one ends at the upper."""
    head = FollowedHead(30, [(10, 100), (20, 100), (25, 100)])
    assert head.end_of_step(0, 1) == 10
    assert head.end_of_step(0, 200) == 20
    assert head.end_of_step(0, 300) == 30
    assert head.end_of_step(25, 1) == 30
    assert head.left_bytes({}) == 300
