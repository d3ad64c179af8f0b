"""Rows decoded by a survey are used again if the binding is proven to have the same bytes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.decoding import info_of
from tidelog.collection.ingest.engine import survey_here
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import DecodedRows, TextsNotKept, decode_file
from tidelog.collection.source.decoded_cache import RowsInMemory
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.port import SurveyResult
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.errors import SourceRewritten
from tidelog.persist.format.schema import shard_schema
from tidelog.store.memory import MemoryStore

FIELDS: list[Any] = [pa.field("at", pa.int64()), pa.field("v", pa.string())]
TIMED = shard_schema(pa.schema(FIELDS), key=[])
BLOCK = 16


@dataclass
class TimedFile:
    """A file in time order, and a source that surveys it in small pieces."""

    lines: list[bytes]
    is_versioned: bool = False
    clock: SwiftClock = field(default_factory=SwiftClock)
    store: MemoryStore = field(default_factory=lambda: MemoryStore(name="memory://"))
    rows: RowsInMemory = field(default_factory=RowsInMemory)

    def source(self) -> FilesSource:
        return FilesSource(
            store=self.store,
            clock=self.clock,
            info=info_of(time_column="at", max_ahead_ms=None),
            schema=TIMED,
            is_versioned=self.is_versioned,
            block_bytes=BLOCK,
            piece_bytes=3 * BLOCK,
            rows=self.rows,
        )

    async def bound(self, bytes_max: int = 10**9) -> list[FileRange]:
        await self.store.put("a", b"".join(self.lines))
        source = self.source()

        async def survey(job: SurveyJob) -> SurveyResult:
            return await survey_here(job, source, at_once=3)

        head = await source.head()
        plan = await source.plan({}, head, lower=0, bytes_max=bytes_max, survey=survey)
        assert plan is not None
        return [one for one in plan.ranges if isinstance(one, FileRange)]


def line(at: int, value: str) -> bytes:
    return json.dumps({"at": at, "v": value}).encode() + b"\n"


async def shares(
    source: FilesSource, found: FileRange, cuts: list[int]
) -> tuple[int, list[DecodedRows]]:
    """Return the number of shares that came from memory, and the decoded shares of the range."""
    inner = sorted({cut for cut in cuts if found.start < cut < found.limit})
    done, kept = [], 0
    for low, high in pairwise([found.start, *inner, found.limit]):
        share, data = await source.read(found, low, high)
        kept += isinstance(data, DecodedRows)
        done.append(decode_file(data, share, TIMED.data, source=source.info, required=["at"]))
    return kept, done


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    bad=st.sets(st.integers(0, 29)),
    cuts=st.lists(st.integers(0, 400), max_size=3),
    bytes_max=st.sampled_from([40, 150, 10**9]),
    is_versioned=st.booleans(),
)
def test_what_is_kept_is_what_would_be_decoded(
    sizes: list[int], bad: set[int], cuts: list[int], bytes_max: int, is_versioned: bool
) -> None:
    """Kept rows equal decoded ones, for any cut of pieces, bindings and shares."""
    lines = [
        b'{"at": %d, "v": %s}\n' % (n, b"[1]" if n in bad else json.dumps("x" * size).encode())
        for n, size in enumerate(sizes)
    ]
    lake = TimedFile(lines, is_versioned)

    async def both() -> None:
        for found in await lake.bound(bytes_max):
            _, ours = await shares(lake.source(), found, cuts)
            anew = lake.source()
            anew.rows = None
            kept, theirs = await shares(anew, found, cuts)
            assert kept == 0
            for one, other in zip(ours, theirs, strict=True):
                assert one.rows.to_pylist() == other.rows.to_pylist()
                assert one.errors.to_pylist() == other.errors.to_pylist()

    asyncio.run(both())


@pytest.mark.parametrize("is_versioned", [False, True])
def test_a_range_is_decoded_once(is_versioned: bool) -> None:
    """A task finds the rows in memory, although its range has other boundaries than the survey."""
    lake = TimedFile([line(n, "xyz") for n in range(40)], is_versioned)

    async def read() -> tuple[int, list[DecodedRows]]:
        [found] = await lake.bound()
        return await shares(lake.source(), found, [100, 500])

    kept, done = asyncio.run(read())
    assert kept == 3
    assert [row["at"] for one in done for row in one.rows.to_pylist()] == list(range(40))
    with pytest.raises(TextsNotKept):
        done[0].texts(done[0].rows.column(2).to_numpy())


def test_a_binding_of_other_bytes_is_decoded_again() -> None:
    """If another ingester bound other bytes, the bytes decide, not the rows in memory."""
    lake = TimedFile([line(n, "xyz") for n in range(40)])

    async def read() -> None:
        [found] = await lake.bound()
        assert found.sums
        _, data = await lake.source().read(found)
        assert isinstance(data, DecodedRows)
        other = bytes([found.sums[0] ^ 1]) + found.sums[1:]
        with pytest.raises(SourceRewritten):
            await lake.source().read(msgspec.structs.replace(found, sums=other))
        header = msgspec.structs.replace(found, header=b"v,at\n")
        _, data = await lake.source().read(header)
        assert not isinstance(data, DecodedRows)

    asyncio.run(read())


def test_a_record_that_ends_in_a_changed_piece_is_decoded_again() -> None:
    """The sums of its own piece do not prove such a record."""
    mine = TimedFile([line(n, "x" * 20) for n in range(20)])
    text = b"".join(mine.lines)
    at = text.index(b"x", 3 * BLOCK)
    assert b"\n" not in text[3 * BLOCK : at]
    theirs = TimedFile([text[:at] + b"y" + text[at + 1 :]])

    async def read() -> tuple[int, list[DecodedRows]]:
        await mine.bound()
        [found] = await theirs.bound()
        [piece] = [one for one in mine.rows.find("a", 0, 10**9) if one.proof.first == 0]
        assert piece.proof.fits(found)
        theirs.rows = RowsInMemory()
        theirs.rows.keep(piece)
        return await shares(theirs.source(), found, [3 * BLOCK + 1])

    kept, done = asyncio.run(read())
    assert kept == 0
    assert any("y" in row["v"] for one in done for row in one.rows.to_pylist())


def test_rows_of_other_columns_are_not_used() -> None:
    """The bytes are the bound ones, but another schema decodes them after an alteration."""
    lake = TimedFile([line(n, "xyz") for n in range(20)])

    async def read() -> None:
        [found] = await lake.bound()
        pieces = lake.rows.find(found.path, 0, 10**9)
        assert any(piece.proof.fits(found) for piece in pieces)
        later = msgspec.structs.replace(found, schema_id=1)
        assert not any(piece.proof.fits(later) for piece in pieces)

    asyncio.run(read())


def test_a_version_proves_nothing_of_another() -> None:
    """A range of a replaced object raises SourceRewritten, although its rows are in memory."""
    lake = TimedFile([line(n, "xyz") for n in range(20)], is_versioned=True)

    async def read() -> None:
        [found] = await lake.bound()
        with pytest.raises(SourceRewritten):
            await lake.source().read(msgspec.structs.replace(found, e_tag="other"))

    asyncio.run(read())


def test_memory_is_bounded() -> None:
    """The oldest rows are evicted first, and decoded again on demand."""
    lake = TimedFile([line(n, "xyz") for n in range(60)])
    lake.rows.bytes_max = 1_000

    async def read() -> int:
        [found] = await lake.bound()
        pieces = lake.rows.find("a", 0, 10**9)
        assert sum(piece.size_bytes for piece in pieces) <= 1_000
        assert all(piece.proof.first > 0 for piece in pieces)
        kept, done = await shares(lake.source(), found, [])
        assert [row["at"] for row in done[0].rows.to_pylist()] == list(range(60))
        return kept

    assert asyncio.run(read()) == 0
