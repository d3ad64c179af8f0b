"""Compressed text: the same rows as plain text, at the same addresses, for any division."""

from __future__ import annotations

import asyncio
import errno
import io
import random
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.packing import packed
from kit.sources import (
    changes,
    changes_spec,
    contents,
    ingest_files,
    lake_of,
    make_source,
    run_once,
    write_files,
)
from tidelog.collection.formats.packed import text as packed_text
from tidelog.collection.formats.packed.inflate import frame_end
from tidelog.collection.formats.packed.text import TORN_MEMBER
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import LocationError, SourceRewritten, UsageError

SUFFIXES = (".gz", ".zst")


def lines(numbers: Sequence[int]) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in numbers)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("format", ["json", "csv"])
async def test_compressed_files_hold_what_their_text_does(
    tmp_path: Path, format: str, suffix: str
) -> None:
    """Rows, bad rows and offsets agree, in ticks of any size, from a disk or a cloud."""
    files = write_files(tmp_path / "plain", format, changes(45))
    (tmp_path / "packed").mkdir()
    for file in sorted((tmp_path / "plain").iterdir()):
        data = packed(file.read_bytes(), suffix, (70, 1_000))
        (tmp_path / "packed" / (file.name + suffix)).write_bytes(data)
    seen = []
    for number, (pattern, bytes_max, versioned) in enumerate(
        [
            (files, 10**8, False),
            (f"{tmp_path}/packed/*{suffix}", 1_100, False),
            (f"{tmp_path}/packed/*{suffix}", 10**8, True),
        ]
    ):
        spec = changes_spec(pattern, format=format)
        location = await make_source(tmp_path / str(number), spec)
        summary = await ingest_files(location, bytes_max=bytes_max, versioned=versioned)
        assert not summary.left_bytes
        bad = [row.replace(suffix, "") for row in await contents(location, "c_errors")]
        seen.append((await contents(location), bad))

    assert seen[0][0]
    assert seen[0][1]
    assert seen[1:] == seen[:1] * 2


@settings(max_examples=10)
@given(
    suffix=st.sampled_from(SUFFIXES),
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    bytes_max=st.integers(10, 60),
    versioned=st.booleans(),
)
def test_each_row_is_taken_once(
    tmp_path_factory: pytest.TempPathFactory,
    suffix: str,
    counts: list[int],
    cuts: list[int],
    bytes_max: int,
    versioned: bool,
) -> None:
    """Members and ticks may both end in the middle of a line."""
    folder = tmp_path_factory.mktemp("packed")
    bounds = [0, *accumulate(counts)]
    for place, count in enumerate(counts):
        text = lines(range(bounds[place], bounds[place] + count))
        (folder / f"{place}{suffix}").write_bytes(packed(text, suffix, cuts))

    async def work() -> list[str]:
        location = await lake_of(folder, f"*{suffix}", schema="n bigint")
        await ingest_files(location, bytes_max=bytes_max, versioned=versioned)
        return await contents(location)

    assert asyncio.run(work()) == sorted(repr({"n": n}) for n in range(bounds[-1]))


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_members_that_are_appended_are_taken(tmp_path: Path, suffix: str) -> None:
    """Appended members are like appended lines. A line may continue in the next member."""
    file = tmp_path / f"a{suffix}"
    file.write_bytes(packed(lines([0, 1]) + b'{"n":', suffix))
    location = await lake_of(tmp_path, file.name, schema="n bigint")
    first = await ingest_files(location)
    with file.open("ab") as more:
        more.write(packed(b" 2}\n" + lines([3]), suffix))

    second = await ingest_files(location)
    assert (first.rows, second.rows, second.left_bytes) == (2, 2, 0)
    assert "line end" in first.waiting[file.name]
    assert not second.waiting
    assert await contents(location) == sorted(repr({"n": n}) for n in range(4))


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_a_file_of_other_text_is_another(tmp_path: Path, suffix: str) -> None:
    """The ingester takes the rows of the other text, and reports that some may be duplicates."""
    file = tmp_path / f"a{suffix}"
    file.write_bytes(packed(lines(range(9)), suffix))
    location = await lake_of(tmp_path, file.name, schema="n bigint")
    await ingest_files(location)
    file.write_bytes(packed(lines(range(1, 12)), suffix))

    summary = await ingest_files(location)
    assert (summary.rows, list(summary.notes)) == (11, [f"a{suffix}"])


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_a_range_whose_file_changed_before_it_was_read(tmp_path: Path, suffix: str) -> None:
    """A reader of a range raises SourceRewritten if the text changed after the binding."""
    file = tmp_path / f"a{suffix}"
    file.write_bytes(packed(lines(range(9)), suffix))
    location = await lake_of(tmp_path, file.name, schema="n bigint")
    ingester = await location.sources.ingester("c")
    plan = await ingester.plan(await ingester.source.head(), 0)
    assert plan is not None
    (found,) = plan.ranges
    reader = (await location.sources.ingester("c")).source

    assert await reader.read(found) == (found, lines(range(9)))
    for other in (
        packed(lines(range(1, 10)), suffix),
        packed(lines(range(5)), suffix),
        b"nothing of it",
    ):
        file.write_bytes(other)
        with pytest.raises(SourceRewritten, match=f"'a{suffix}' was rewritten"):
            await reader.read(found)


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_a_torn_or_damaged_file_is_told_and_stops_no_other(
    tmp_path: Path, suffix: str
) -> None:
    """Whole members of a truncated file are taken. A damaged file gives nothing."""
    text = lines(random.Random(7).sample(range(10**9), 400))
    whole = packed(text, suffix)
    (tmp_path / f"a{suffix}").write_bytes(packed(lines([1]), suffix) + whole[:-10])
    (tmp_path / f"b{suffix}").write_bytes(whole[:20] + b"\xff" * 20 + whole[40:])
    (tmp_path / f"c{suffix}").write_bytes(b"no such thing at all, at all")
    (tmp_path / f"d{suffix}").write_bytes(packed(lines([2]), suffix))
    location = await lake_of(tmp_path, f"*{suffix}", schema="n bigint")

    summary = await ingest_files(location)
    assert await contents(location) == [repr({"n": 1}), repr({"n": 2})]
    assert list(summary.waiting) == [f"{name}{suffix}" for name in "abc"]
    assert summary.waiting[f"a{suffix}"] == TORN_MEMBER
    assert all("it is not a complete" in summary.waiting[f"{name}{suffix}"] for name in "bc")
    (tmp_path / f"a{suffix}").write_bytes(packed(lines([1]), suffix) + whole)
    again = await ingest_files(location)
    assert again.rows == 400
    assert f"a{suffix}" not in again.waiting


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("bomb", [b"\0", b"{}\n"], ids=["line", "text"])
async def test_a_file_that_explodes_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, bomb: bytes
) -> None:
    """A line may exceed memory, or the text a plausible compression ratio."""
    monkeypatch.setattr(packed_text, "RECORD_BYTES_MAX", 2**20)
    monkeypatch.setattr(packed_text, "FREE_TEXT_BYTES", 2**21)
    monkeypatch.setattr(packed_text, "RATIO_MAX", 100)
    (tmp_path / f"a{suffix}").write_bytes(packed(bomb * (2**23 // len(bomb)), suffix))
    (tmp_path / f"b{suffix}").write_bytes(packed(lines([2]), suffix))
    location = await lake_of(tmp_path, f"*{suffix}", schema="n bigint")

    summary = await ingest_files(location, bytes_max=2**21)
    assert await contents(location) == [repr({"n": 2})]
    assert "it is not decompressed" in summary.waiting[f"a{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_inference_reads_compressed_files(tmp_path: Path, suffix: str) -> None:
    """Inference works in both formats, and uses the intact part of a truncated file."""
    (tmp_path / f"a.csv{suffix}").write_bytes(packed(b"id;day\n1;13.01.2024\n", suffix))
    text = b'{"id": 1, "at": "2024-01-01"}\n' * 3
    (tmp_path / f"a.json{suffix}").write_bytes(packed(text, suffix) + packed(text, suffix)[:-9])
    for kind, row in (
        ("csv", "{'id': 1, 'day': datetime.date(2024, 1, 13)}"),
        ("json", "{'id': 1, 'at': datetime.date(2024, 1, 1)}"),
    ):
        spec = SourceSpec(name="c", files=tmp_path / f"a.{kind}{suffix}", format=kind)
        location = await make_source(tmp_path / f"lake-{kind}", spec)
        await ingest_files(location)
        assert (await contents(location))[0] == row
    (tmp_path / f"x.json{suffix}").write_bytes(b"no such thing at all, at all")
    with pytest.raises(UsageError, match="cannot be decompressed: it is not a complete"):
        await lake_of(tmp_path, f"x.json{suffix}", schema=None)


@given(sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=3), cut=st.integers(1, 50))
@settings(max_examples=15)
def test_where_a_frame_of_zstd_ends_is_found_without_decompressing_it(
    sizes: list[int], cut: int
) -> None:
    """A truncated frame has no end."""
    noise = random.Random(1).randbytes(200_000)
    frames = [packed(noise[: size // 2] + b"a" * (size // 2), ".zst") for size in sizes]
    whole = b"".join(frames)
    at, ends = 0, []
    while at < len(whole):
        end = frame_end(io.BytesIO(whole), at, len(whole))
        assert end is not None
        ends.append(at := end)

    assert ends == list(accumulate(map(len, frames)))
    torn = whole[: len(whole) - min(cut, len(frames[-1]))]
    start = len(whole) - len(frames[-1])
    assert start == len(torn) or frame_end(io.BytesIO(torn), start, len(torn)) is None


@pytest.mark.parametrize("suffix", SUFFIXES)
async def test_what_is_final_takes_no_half_of_a_member(tmp_path: Path, suffix: str) -> None:
    """A last line without its end is taken only if its member is complete."""
    text = lines([1]) + b'{"n": 2'
    (tmp_path / f"a{suffix}").write_bytes(packed(text, suffix) + packed(text, suffix)[:-6])
    (tmp_path / f"b{suffix}").write_bytes(packed(text + b"}", suffix))
    location = await lake_of(tmp_path, f"*{suffix}", schema="n bigint")
    ingester = await location.sources.ingester("c", final=True)
    summary = await run_once(ingester)

    assert (summary.rows, summary.bad) == (3, 0)
    assert list(summary.waiting) == [f"a{suffix}"]


@pytest.mark.parametrize("where", ["survey", "read"])
async def test_a_disk_that_is_full_is_no_mistake_of_tidelogs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The machine is at fault. No row is lost, and the next run continues."""
    location = await lake_of(tmp_path, schema="n bigint")
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(packed(lines(range(9)), ".gz", (20,)))
    opened: Any = tempfile.SpooledTemporaryFile
    calls: list[Any] = []

    def full(**how: Any) -> Any:
        calls.append(how)
        if where == "survey" or len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(**how)

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "SpooledTemporaryFile", full)
        ingester = await location.sources.ingester("c")
        if where == "survey":
            assert "this machine failed" in (await run_once(ingester)).waiting["a.jsonl.gz"]
        else:
            plan = await ingester.plan(await ingester.source.head(), 0)
            assert plan is not None
            await ingester._mint(plan, 0, 1_000)
            with pytest.raises(LocationError, match=r"this machine failed .* No space left"):
                await run_once(await location.sources.ingester("c"))
    await ingest_files(location)
    assert len(await contents(location)) == 9
