"""Surveys and reads of files: each record is taken once and proven, for any division."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.avro import avro_bytes, record
from kit.clocks import SwiftClock
from kit.decoding import info_of
from kit.sources import changes, changes_spec, make_source, rows_of, run_once, write_files
from tidelog.collection.ingest.engine import survey_here
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import decode_range
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.moves import former_path
from tidelog.collection.source.port import SurveyResult
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.errors import SourceRewritten
from tidelog.persist.format.schema import shard_schema
from tidelog.store.keys import is_version
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.metered import MeteringStore

SCHEMA_OF_LINES = shard_schema(pa.schema([("n", pa.int64())]), key=[])
FAR = 10**9


@dataclass
class Lake:
    """Files in a store that counts its requests, and a source of them."""

    is_versioned: bool = True
    format: str = "json"
    block_bytes: int = 16
    clock: SwiftClock = field(default_factory=SwiftClock)

    def __post_init__(self) -> None:
        self.inner = MemoryStore(name="memory://")
        self.store = MeteringStore(self.inner, clock=self.clock)
        self.source = self.opened()

    def opened(self) -> FilesSource:
        return FilesSource(
            store=self.store,
            clock=self.clock,
            info=info_of(format=self.format),
            schema=SCHEMA_OF_LINES,
            is_versioned=self.is_versioned,
            block_bytes=self.block_bytes,
            piece_bytes=3 * self.block_bytes,
        )

    async def survey(self, job: SurveyJob) -> SurveyResult:
        return await survey_here(job, self.source, at_once=3)

    async def ranges(self, bytes_max: int = FAR) -> list[FileRange]:
        """Bind everything, in ranges of about ``bytes_max`` bytes."""
        taken: dict[str, FileRange] = {}
        found: list[FileRange] = []
        head = await self.source.head()
        while (
            plan := await self.source.plan(
                taken, head, lower=0, bytes_max=bytes_max, survey=self.survey
            )
        ) is not None:
            ranges = [one for one in plan.ranges if isinstance(one, FileRange)]
            found.extend(ranges)
            taken |= {r.path: r for r in ranges}
        return found

    async def numbers(self, found: FileRange, cuts: Sequence[int] = ()) -> list[int]:
        """Read a range or its shares, with a source that kept nothing of the survey."""
        inner = sorted({cut for cut in cuts if found.start < cut < found.limit})
        numbers: list[int] = []
        for low, high in pairwise([found.start, *inner, found.limit]):
            share, data = await self.opened().read(found, low, high)
            assert isinstance(data, bytes)
            rows = decode_range(data, share, SCHEMA_OF_LINES.data, format=self.format).rows
            numbers += rows.column("n").to_numpy().tolist()
        return numbers


def lines_of(numbers: Sequence[int], widths: Sequence[int]) -> bytes:
    lines = [
        json.dumps({"n": n, "x": "x" * widths[i % len(widths)]}) for i, n in enumerate(numbers)
    ]
    return "".join(line + "\n" for line in lines).encode()


@settings(max_examples=30)
@given(
    count=st.integers(0, 12),
    widths=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    bytes_max=st.integers(1, 200),
    cuts=st.lists(st.integers(0, 500), max_size=4),
    block_bytes=st.integers(1, 90),
    is_versioned=st.booleans(),
    ended=st.booleans(),
)
def test_each_record_is_read_once_however_files_are_cut(
    count: int,
    widths: list[int],
    bytes_max: int,
    cuts: list[int],
    block_bytes: int,
    is_versioned: bool,
    ended: bool,
) -> None:
    """Bindings may have any size, and tasks may divide a binding at any byte."""
    lake = Lake(is_versioned=is_versioned, block_bytes=block_bytes)
    data = lines_of(range(count), widths)

    async def read() -> list[int]:
        await lake.store.put("a", data if ended else data[:-1])
        found: list[int] = []
        for one in await lake.ranges(bytes_max):
            found += await lake.numbers(one, cuts)
        return found

    # A last json object is complete without its line end.
    assert asyncio.run(read()) == list(range(count))


def parquet_of(rows: int, groups: int) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"n": pa.array(range(rows), pa.int64())})
    pq.write_table(table, sink, row_group_size=groups)
    return sink.getvalue().to_pybytes()


@settings(max_examples=15)
@given(
    bytes_max=st.integers(1, 1_500),
    cuts=st.lists(st.integers(0, 1_500), max_size=4),
    is_versioned=st.booleans(),
)
def test_each_row_group_is_read_once_however_files_are_cut(
    bytes_max: int, cuts: list[int], is_versioned: bool
) -> None:
    """A row group belongs to the range with its first byte."""
    lake = Lake(is_versioned=is_versioned, format="parquet", block_bytes=100)

    async def read() -> list[int]:
        await lake.store.put("a", parquet_of(50, 10))
        found: list[int] = []
        for one in await lake.ranges(bytes_max):
            found += await lake.numbers(one, cuts)
        return found

    assert asyncio.run(read()) == list(range(50))


NUMBERED = record(n="long", x="string")


def avro_of(numbers: Sequence[int], widths: Sequence[int], rows_a_block: int) -> bytes:
    rows = [{"n": n, "x": "x" * widths[i % len(widths)]} for i, n in enumerate(numbers)]
    return avro_bytes(NUMBERED, rows, rows_a_block=rows_a_block)


@settings(max_examples=40)
@given(
    count=st.integers(0, 12),
    widths=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    rows_a_block=st.integers(1, 4),
    bytes_max=st.integers(1, 400),
    cuts=st.lists(st.integers(0, 900), max_size=4),
    block_bytes=st.integers(1, 90),
    is_versioned=st.booleans(),
    torn=st.integers(0, 30),
)
def test_each_avro_block_is_read_once_however_files_are_cut(
    count: int,
    widths: list[int],
    rows_a_block: int,
    bytes_max: int,
    cuts: list[int],
    block_bytes: int,
    is_versioned: bool,
    torn: int,
) -> None:
    """A block belongs to the range with its first byte, and a torn one at the end waits."""
    lake = Lake(is_versioned=is_versioned, format="avro", block_bytes=block_bytes)
    more = avro_of([99, 99], widths, 2)[len(avro_of([], widths, 1)) :]
    data = avro_of(range(count), widths, rows_a_block) + more[:torn][: len(more) - 1]

    async def read() -> list[int]:
        await lake.store.put("a", data)
        found: list[int] = []
        for one in await lake.ranges(bytes_max):
            found += await lake.numbers(one, cuts)
        return found

    assert asyncio.run(read()) == list(range(count))


async def test_an_avro_file_that_grew_costs_its_header_and_its_last_blocks() -> None:
    """Blocks that were taken are not read again, and the torn one is taken when it is whole."""
    lake = Lake(is_versioned=False, format="avro")
    data = avro_of(range(2_000), [5], 10)
    whole = data + avro_of([2_000], [5], 1)[len(avro_of([], [5], 1)) :]
    await lake.store.put("a", whole[:-3])
    (found,) = await lake.ranges()
    assert (found.start, found.limit) == (0, len(data))
    assert await lake.numbers(found) == [*range(2_000)]
    assert lake.source.waiting() == {"a": "its last block is not complete yet"}

    await lake.store.put("a", whole)
    before = lake.store.usage()
    plan = await lake.source.plan(
        {"a": found}, await lake.source.head(), lower=0, bytes_max=FAR, survey=lake.survey
    )

    assert plan is not None
    (more,) = (one for one in plan.ranges if isinstance(one, FileRange))
    assert (more.start, more.limit) == (len(data), len(whole))
    assert (lake.store.usage() - before).read_bytes < 12_000
    assert await lake.numbers(more) == [2_000]


async def test_objects_with_versions_are_bound_by_their_listing_alone() -> None:
    """A plan reads no bytes of such objects, whatever their number and size."""
    lake = Lake()
    for name in range(20):
        await lake.store.put(f"{name:02}", lines_of(range(9), [5]))
    before = lake.store.usage()
    found = await lake.ranges()

    asked = lake.store.usage() - before
    assert (asked.get_count, asked.list_count, len(found)) == (0, 1, 20)
    assert not any(one.is_summed for one in found)


async def test_an_object_that_was_replaced_after_it_was_bound_is_an_error() -> None:
    """The bytes may look alike, but they are not the bound ones."""
    lake = Lake()
    await lake.store.put("a", lines_of(range(9), [5]))
    (found,) = await lake.ranges()
    await lake.store.put("a", lines_of(range(1, 10), [5]))

    with pytest.raises(SourceRewritten, match="'a' was rewritten"):
        await lake.opened().read(found)
    plan = await lake.source.plan(
        {"a": found}, await lake.source.head(), lower=0, bytes_max=FAR, survey=lake.survey
    )
    assert plan is not None
    assert [(r.path, r.start, r.is_read) for r in plan.ranges] == [
        ("a", 0, True),
        (former_path(found), found.start, False),
    ]
    assert "a different file" in lake.source.notes()["a"]


async def test_a_listing_that_is_older_than_a_binding_takes_nothing() -> None:
    """Another ingester listed later, and took an object replaced in between."""
    lake = Lake()
    await lake.store.put("a", lines_of(range(3), [5]))
    old = await lake.source.head()
    await lake.store.put("a", lines_of(range(1), [5]))
    (theirs,) = await lake.ranges()

    plan = await lake.source.plan({"a": theirs}, old, lower=0, bytes_max=FAR, survey=lake.survey)
    assert plan is None
    assert await lake.numbers(theirs) == [0]


async def test_who_reads_a_piece_checks_its_blocks_and_asks_for_no_others() -> None:
    """A task reads only its share of a file, and verifies the blocks that it reads."""
    lake = Lake(is_versioned=False)
    data = lines_of(range(40), [5])
    await lake.store.put("a", data)
    (found,) = await lake.ranges()
    spoilt = data[:100] + b"?" + data[101:]
    await lake.store.put("a", spoilt)

    before = lake.store.usage()
    _, read = await lake.opened().read(found, 16 * 20 + 1, 16 * 30 + 1)
    asked = lake.store.usage() - before
    assert isinstance(read, bytes)
    assert data.find(read) > 16 * 20
    assert asked.read_bytes <= 16 * 12
    with pytest.raises(SourceRewritten, match="'a' was rewritten"):
        await lake.opened().read(found, found.start, 16 * 10 + 1)


async def test_a_file_that_grew_costs_its_last_blocks_and_not_all_that_was_taken() -> None:
    """The ingester looks at a growing file each second. A replaced file is another one."""
    lake = Lake(is_versioned=False)
    data = lines_of(range(2_000), [5])
    await lake.store.put("a", data)
    (found,) = await lake.ranges()
    await lake.store.put("a", data + b'{"n": 100}\n')
    before = lake.store.usage()

    plan = await lake.source.plan(
        {"a": found}, await lake.source.head(), lower=0, bytes_max=FAR, survey=lake.survey
    )
    assert plan is not None
    assert [(r.start, r.limit) for r in plan.ranges] == [(len(data), len(data) + 11)]
    assert (lake.store.usage() - before).read_bytes < 8_000
    await lake.store.put("a", b'{"n": 7}' + data[8:])
    plan = await lake.opened().plan(
        {"a": found}, await lake.source.head(), lower=0, bytes_max=FAR, survey=lake.survey
    )
    assert plan is not None
    assert [(r.start, r.limit) for r in plan.ranges if r.is_read] == [(0, len(data))]


async def test_what_waits_is_looked_at_once() -> None:
    """An incomplete last line is read only once. It must not be read again each second."""
    lake = Lake(is_versioned=False)
    await lake.store.put("a", b'{"n": 1}\n{"n": 2')
    assert [r.limit for r in await lake.ranges()] == [9]
    before = lake.store.usage()

    assert (
        await lake.source.plan(
            {"a": FileRange(path="a", start=0, limit=9, e_tag=(await lake.store.get("a")).e_tag)},
            await lake.source.head(),
            lower=0,
            bytes_max=FAR,
            survey=lake.survey,
        )
        is None
    )
    assert list(lake.source.waiting()) == ["a"]
    assert (lake.store.usage() - before).get_count == 1  # The test's own read.
    await lake.store.delete(["a"])
    await lake.source.plan({}, await lake.source.head(), lower=0, bytes_max=FAR, survey=lake.survey)
    assert not lake.source.waiting()


async def test_an_object_that_cannot_be_read_though_it_is_bound_is_one_bad_row() -> None:
    """A bound object that can never be read is one bad row. It must not stop the source."""
    lake = Lake(format="parquet")
    tag = await lake.store.put("a", b"PAR1 no footer here PAR1")
    size = len(b"PAR1 no footer here PAR1")
    found = FileRange(path="a", start=0, limit=size, size_bytes=size, e_tag=tag)

    errors = []
    for low, high in ((0, 9), (9, size)):
        share, data = await lake.opened().read(found, low, high)
        assert isinstance(data, bytes)
        decoded = decode_range(data, share, SCHEMA_OF_LINES.data, format="parquet")
        assert not decoded.rows.num_rows
        errors += decoded.errors.to_pylist()
    assert [(e["file"], e["offset"]) for e in errors] == [("a", 0)]
    assert "footer" in errors[0]["reason"]


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "avro"])
async def test_contents_do_not_depend_on_blocks_pieces_or_proofs(
    tmp_path: Path, format: str
) -> None:
    """Two ingesters with other settings would otherwise block each other."""
    files = write_files(tmp_path / "in", format, changes(60))
    kinds = [(1 << 20, 1 << 24, False, 2_000), (16, 64, False, 700), (64, 64, True, 1_500)]
    seen = []
    for number, (block_bytes, piece_bytes, is_versioned, bytes_max) in enumerate(kinds):
        spec = changes_spec(files, format=format)
        location = await make_source(tmp_path / str(number), spec)
        ingester = await location.sources.ingester("c", bytes_max=bytes_max)
        assert isinstance(ingester.source, FilesSource)
        ingester.source.block_bytes = block_bytes
        ingester.source.piece_bytes = piece_bytes
        ingester.source.is_versioned = is_versioned
        await run_once(ingester)
        rows = rows_of(await (await location.collection("c")).consolidated())
        bad = await (await location.collection("c_errors")).consolidated()
        seen.append((rows, bad.num_rows))

    assert seen[0][0]
    assert seen[1:] == seen[:1] * 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("1|a", "1|a", True),
        ("1|a", "2|a", False),
        ("|a", "2|a", True),
        ("|a", "2|b", False),
    ],
)
def test_versions_are_compared_as_far_as_a_listing_tells_them(
    one: str, other: str, same: bool
) -> None:
    """Google Cloud Storage lists objects without their generation number."""
    assert is_version(one, other) is same
