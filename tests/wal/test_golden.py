"""Chroma's stored logs: tidelog reads them as Chroma does, and writes the same bytes."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pyarrow as pa
import pytest

from kit.goldens import FOLDER, NAMES, expected, objects
from tidelog.core.clock import SystemClock
from tidelog.errors import NoSuchLog, PositionCollected
from tidelog.store.memory import MemoryStore
from tidelog.store.urls import open_store
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.wal.format.cursor import decode_cursor, encode_cursor
from tidelog.wal.format.gc_plan import decode_garbage, encode_garbage
from tidelog.wal.format.manifest import (
    MANIFEST,
    decode_manifest,
    encode_manifest,
    problems_of_manifest,
)
from tidelog.wal.format.snapshot import decode_snapshot, encode_snapshot
from tidelog.wal.format.wal3_records import RECORDS
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.scrub.tree_scrub import scrub

EVERY = pytest.mark.parametrize("name", NAMES)


def reader_of(name: str) -> Wal3Reader:
    clock = SystemClock()
    store = MeteringStore(open_store((FOLDER / name).as_uri(), clock=clock), clock=clock)
    return Wal3Reader(store=store, clock=clock)


def scanned(reader: Wal3Reader, start: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
    async def work() -> pa.Table:
        tables = [table async for table in reader.scan(start, limit=limit)]
        assert all(table.num_rows for table in tables)
        return pa.concat_tables([RECORDS.empty_table(), *tables])

    rows: list[dict[str, Any]] = asyncio.run(work()).to_pylist()
    return rows


def test_there_are_golden_logs() -> None:
    """The golden logs exist, because tests over an empty list would pass."""
    assert len(NAMES) == 13


@EVERY
def test_every_object_comes_out_as_it_went_in(name: str) -> None:
    """Every object decodes and encodes to the same bytes, field order included."""
    for key, data in objects(name).items():
        match key.split("/")[0]:
            case "manifest":
                assert encode_manifest(decode_manifest(data)) == data
            case "snapshot":
                assert encode_snapshot(decode_snapshot(data, where=key)) == data
            case "cursor":
                assert encode_cursor(decode_cursor(data, where=key)) == data
            case "gc":
                assert encode_garbage(decode_garbage(data)) == data
            case other:
                assert other == "log"


@EVERY
def test_the_manifest_says_what_chroma_sees(name: str) -> None:
    """A manifest gives the bounds, numbers and sums that Chroma derives from it."""
    wanted = expected(name)
    manifest = decode_manifest(objects(name)[MANIFEST])

    assert problems_of_manifest(manifest) == []
    assert (manifest.oldest, manifest.next) == (wanted["oldest"], wanted["next"])
    assert manifest.next_seq_no == wanted["next_seq_no"]
    assert manifest.setsum.hex() == wanted["manifest_setsum"]
    assert manifest.collected.hex() == wanted["manifest_collected"]
    assert manifest.acc_bytes == wanted["acc_bytes"]
    assert manifest.writer == wanted["manifest_writer"]
    assert (manifest.initial_offset, manifest.initial_seq_no) == (
        wanted["initial_offset"],
        wanted["initial_seq_no"],
    )


@EVERY
def test_every_record_is_the_one_that_chroma_reads(name: str) -> None:
    """A scan through all levels returns the positions, times and bodies that Chroma reads."""
    wanted = [
        (record["offset"], fragment["timestamp_us"], record["len"], record["sha256"])
        for fragment in expected(name)["fragment_list"]
        for record in fragment["records"]
    ]

    found = [
        (
            row["position"],
            row["timestamp_us"],
            len(row["body"]),
            hashlib.sha256(row["body"]).hexdigest(),
        )
        for row in scanned(reader_of(name))
    ]

    assert found == wanted


@EVERY
async def test_fragments_are_those_that_chroma_lists(name: str) -> None:
    """The listed fragments have the paths, sizes and setsums that Chroma lists."""
    found = await reader_of(name).fragments()

    wanted = expected(name)["fragment_list"]
    assert [(f.path, f.seq_no, f.start, f.limit, f.num_bytes, f.setsum.hex()) for f in found] == [
        (f["path"], f["seq_no"], f["start"], f["limit"], f["num_bytes"], f["setsum"])
        for f in wanted
    ]


@EVERY
async def test_scrub_finds_them_whole(name: str) -> None:
    """A scrub finds no problem, and counts the same sums as Chroma's scrub."""
    wanted = expected(name)

    found = await scrub(reader_of(name))

    assert found.problems == []
    assert found.setsum.hex() == wanted["scrub"]["setsum"]
    assert found.bytes_read == wanted["scrub"]["bytes_read"]
    assert (found.records, found.fragments) == (wanted["records"], wanted["fragments"])
    assert found.snapshots == wanted["snapshots_total"]


@EVERY
async def test_cursors_are_read(name: str) -> None:
    """The cursors have the names and positions that Chroma stored."""
    reader = reader_of(name)
    cursors = Cursors(store=reader.store, clock=reader.clock, writer="w")
    found = (await cursors.list()).cursors

    wanted = {
        path.removeprefix("cursor/").removesuffix(".json"): cursor["json"]["position"]["offset"]
        for path, cursor in expected(name)["cursors"].items()
    }
    assert {name: cursor.position for name, cursor in found.items()} == wanted


def test_any_range_is_read_and_no_more_than_it_needs() -> None:
    """A scan of any range returns exactly its records and reads nothing outside it."""
    whole = scanned(reader_of("b_snapshots"))
    for start in range(1, len(whole) + 2, 7):
        for limit in (start + 1, start + 9, len(whole) + 1):
            wanted = [row for row in whole if start <= row["position"] < limit]
            assert scanned(reader_of("b_snapshots"), start, limit) == wanted

    reader = reader_of("b_snapshots")
    newest = whole[-1]["position"]
    assert len(scanned(reader, newest)) == 1
    assert isinstance(reader.store, MeteringStore)
    assert reader.store.usage().get_count == 2, "the manifest, and the fragment that it names"


def test_what_was_collected_is_said_to_be_gone() -> None:
    """A scan of collected positions raises PositionCollected with the oldest position."""
    with pytest.raises(PositionCollected) as told:
        scanned(reader_of("c_gc"), 1)

    assert str(expected("c_gc")["oldest"]) in str(told.value)
    assert scanned(reader_of("c_gc"), expected("c_gc")["oldest"]) == scanned(reader_of("c_gc"))


async def test_objects_that_the_log_does_not_name_are_told() -> None:
    """A scrub lists objects that a crash left as unnamed. They are neither problems nor records."""
    orphan = "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000002.parquet"
    found: ScrubReport = await scrub(reader_of("g_orphan"))

    assert found.unnamed == [orphan]
    assert found.is_clean


async def test_a_folder_without_a_log_is_none() -> None:
    """A read of a folder without a log raises NoSuchLog."""
    reader = Wal3Reader(store=MemoryStore(), clock=SystemClock())

    with pytest.raises(NoSuchLog):
        await reader.manifest()
