"""Renditions of collections whose raw text is in a log, and copies of those that have lost it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from kit.clocks import SwiftClock
from kit.named_logs import ALL
from kit.renditions import rows_at, rows_of
from kit.sources import compact, ingest, lake_of, run_once, write_numbers
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore


async def lake_with_log(*, keeps: bool, schema: str) -> Location:
    """Return a lake with the source ``c`` of the log ``l``, which is still empty."""
    store = MemoryStore(name="memory://")
    lake = await open_location("memory://", create=True, clock=SwiftClock(), store=store)
    await lake.logs.create("l")
    spec = SourceSpec(
        name="c",
        kind="log",
        settings={"log": "l"},
        format="json",
        schema=schema,
        keep_bindings=keeps,
    )
    await lake.sources.create(spec)
    return lake


async def fill(lake: Location, *codes: str) -> None:
    log = await lake.log("l")
    await log.append([json.dumps({"n": len(code), "code": code}).encode() for code in codes])
    await run_once(await lake.sources.ingester("c"))


async def test_a_fault_of_the_decoder_is_mended_from_the_raw_text() -> None:
    """The text is in a log, and the files are gone. Each row gets the time of its bad row."""
    lake = await lake_with_log(keeps=True, schema="n bigint, code bigint")
    for codes in (["007", "x1"], ["12"], ["y22", "1"]):
        await fill(lake, *codes)
    bad = (await (await lake.collection("c_errors")).changes(since=0)).to_pylist()
    expected = {json.loads(row["text"])["code"]: row["_time"] for row in bad}
    assert len(expected) == 5
    assert len(set(expected.values())) == 3

    spec = RenditionSpec(name="c2", schema="n bigint, code varchar", shards=3)
    assert (await lake.renditions.create(spec, of="c")).shares_bindings
    await run_once(await lake.sources.ingester("c2"))
    time = await lake.renditions.handover("c", to="c2")
    await run_once(await lake.sources.ingester("c"))

    assert await rows_at(lake, time - 1) == Counter()
    assert await rows_at(lake) == Counter({(len(code), code): 1 for code in expected})
    rows = (await (await lake.collection("c2")).changes(since=0)).to_pylist()
    assert {row["code"]: row["_time"] for row in rows} == expected


async def test_a_copy_does_not_need_the_records_of_its_log() -> None:
    """The log forgets records that are ingested, and its source forgets their bindings."""
    lake = await lake_with_log(keeps=False, schema="n bigint, code varchar")
    for codes in (["a", "b"], ["c"], ["d"]):
        await fill(lake, *codes)
    await compact(lake)
    assert (await (await lake.log("l")).collect(keep=ALL, grace_us=0)).fragments > 0

    await lake.renditions.create(RenditionSpec(name="c2", shards=2, copy=True), of="c")
    await run_once(await lake.sources.ingester("c2"))
    await fill(lake, "e")
    await run_once(await lake.sources.ingester("c2"))

    newest = ((await lake.renditions.describe("c")).upper or 0) - 1
    found = await rows_of(lake, "c2", newest)
    assert sorted(code for _, code in found) == ["a", "b", "c", "d", "e"]
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0


async def test_a_copy_of_an_empty_rendition_reads_the_source(tmp_path: Path) -> None:
    """There is nothing to copy, also if a binding waits for its rows."""
    lake = await lake_of(tmp_path)
    await lake.renditions.create(RenditionSpec(name="c2", shards=2, copy=True), of="c")
    write_numbers(tmp_path / "in" / "1.jsonl", 1)
    bound = await lake.sources.get_binding("c", "1.jsonl", 0)

    await run_once(await lake.sources.ingester("c2"))
    await ingest(lake, "c")

    assert await rows_of(lake, "c2", bound.time) == Counter({(1, 1_000): 1})
    assert (await lake.renditions.diff("c", "c2")).num_rows == 0
