"""The smallest file for each fault that random messy files found."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kit.clocks import OneThread
from kit.sources import run_once
from tidelog.collection.formats.csv.guess import CsvOptions
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.source.files import FilesSource
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import AsOfNotComplete
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore


async def make(folder: Path, schema: str, **given: Any) -> Location:
    """Make a location in memory with a source of a folder's files."""
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=OneThread(), store=store)
    await location.sources.create(SourceSpec(name="c", files=str(folder), schema=schema, **given))
    return location


async def take(location: Location, *, bytes_max: int = 10**8, piece_bytes: int = 0) -> Summary:
    ingester: Ingester = await location.sources.ingester("c", bytes_max=bytes_max)
    if piece_bytes:
        assert isinstance(ingester.source, FilesSource)
        ingester.source.block_bytes = ingester.source.piece_bytes = piece_bytes
    return await run_once(ingester)


async def rows_in(location: Location, name: str = "c") -> list[str]:
    """Return a collection's rows as sorted text, each as often as it counts."""
    collection = await location.collection(name)
    with suppress(AsOfNotComplete):
        found = (await collection.consolidated()).to_pylist()
        return sorted(repr(row) for row in found for _ in range(row.pop("_diff")))
    return []


@pytest.mark.parametrize("kind", ["date", "timestamp"])
@pytest.mark.parametrize("format", [None, "%d.%m.%Y"])
async def test_words_are_no_times(tmp_path: Path, kind: str, format: str | None) -> None:
    """A word is not a time. SQL reads 'epoch' as 1970, and with a format 'infinity' as 1900."""
    words = ["epoch", "infinity", "-infinity", "Epoch"]
    (tmp_path / "a.csv").write_text("".join(f"{word},1\n" for word in ["t", *words]))
    given = CsvOptions(header=True, delimiter=",", date_format=format, timestamp_format=format)

    location = await make(tmp_path, f"t {kind}, n int", format="csv", csv=given)
    await take(location)

    assert await rows_in(location) == []
    assert len(await rows_in(location, "c_errors")) == len(words)


@pytest.mark.parametrize("number", ["10000000000", '"10000000000"', "-10000000000"])
async def test_a_decimal_of_json_has_no_more_digits_than_its_column(
    tmp_path: Path, number: str
) -> None:
    """The JSON reader accepts any number of digits, so a decimal with too many is a bad row."""
    lines = [f'{{"a": {number}}}', f'{{"b": [1, {number}]}}', '{"a": 9999999999.99}']
    (tmp_path / "a.jsonl").write_text("".join(line + "\n" for line in lines))

    location = await make(tmp_path, "a decimal(12, 2), b decimal(12, 2)[]")
    await take(location)

    assert await rows_in(location) == ["{'a': Decimal('9999999999.99'), 'b': None}"]
    assert len(await rows_in(location, "c_errors")) == 2


@pytest.mark.parametrize("number", ["1e400", "-1.5E+999", '{"x": [1e400, "a"]}'])
async def test_a_number_in_json_text_may_be_as_large_as_it_is(tmp_path: Path, number: str) -> None:
    """A column of type JSON takes a number of any size; Arrow would refuse the line."""
    lines = [f'{{"t": 1, "a": {number}, "more": 1e400}}', '{"t": 2, "a": 1, "d": 1e400}']
    lines += ['{"t": 3, "t": 3, "a": 1e400}', '{"t": 4, "a": "1e400"}']
    (tmp_path / "a.jsonl").write_text("".join(line + "\n" for line in lines))
    location = await make(tmp_path, "t bigint, a json, d double", time_column="t")

    summary = await take(location)

    first = {"t": 1, "a": number, "d": None}
    assert await rows_in(location) == [str(first), str({"t": 4, "a": '"1e400"', "d": None})]
    assert len(await rows_in(location, "c_errors")) == 2
    assert summary.dropped == {"more": 1}


async def test_an_array_that_is_not_closed_waits_though_it_ends_with_an_object(
    tmp_path: Path,
) -> None:
    """An unclosed array waits and is reported, even if it ends with an object."""
    (tmp_path / "a.json").write_text('[{"k": 1}, {"k": 2}')
    location = await make(tmp_path, "k int", format="json-array")

    summary = await take(location)

    assert list(summary.waiting) == ["a.json"]
    assert await rows_in(location) == ["{'k': 1}"]


async def test_half_of_a_member_is_told_whatever_a_tick_takes(tmp_path: Path) -> None:
    """Half of a compressed member is reported, even by a tick of a few bytes."""
    data = gzip.compress(b'{"k": 1}\n{"k": 2, "more": 1') + gzip.compress(b"}\n" * 40)
    (tmp_path / "a.jsonl.gz").write_bytes(data[:-9])
    location = await make(tmp_path, "k int")

    summary = await take(location, bytes_max=1)

    assert list(summary.waiting) == ["a.jsonl.gz"]
    assert await rows_in(location) == ["{'k': 1}"]


@pytest.mark.parametrize("before", ["", '{"k": 0}\n'])
async def test_a_last_object_is_taken_whichever_pieces_it_lies_in(
    tmp_path: Path, before: str
) -> None:
    """A last object without a line end is taken, even if it spans several pieces."""
    (tmp_path / "a.jsonl").write_text(before + '{"k": 1, "more": "' + "x" * 200 + '"}')
    location = await make(tmp_path, "k int")

    summary = await take(location, piece_bytes=64)

    assert summary.waiting == {}
    assert await rows_in(location) == ["{'k': 0}", "{'k': 1}"][not before :]


async def test_a_file_may_grow_whose_first_record_is_longer_than_a_piece(tmp_path: Path) -> None:
    """A file with a first record longer than a piece may grow: it is not rewritten."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"k": 1, "more": "' + "x" * 200 + '"}\n{"k": 2}\n')
    location = await make(tmp_path, "k int")
    await take(location, piece_bytes=64)

    with path.open("a") as file:
        file.write('{"k": 3}\n')
    await take(location, piece_bytes=64)

    assert await rows_in(location) == ["{'k': 1}", "{'k': 2}", "{'k': 3}"]


async def test_what_is_left_for_a_later_tick_does_not_wait(tmp_path: Path) -> None:
    """A file with rows left for a later tick does not wait."""
    (tmp_path / "a.jsonl").write_text('{"k": 1}\n{"k": 2}\n')
    location = await make(tmp_path, "k int")
    ingester = await location.sources.ingester("c", bytes_max=1)

    await ingester.tick(await ingester.source.head())

    assert ingester.source.waiting() == {}


MOVES = {
    # Its beginning was all of its first members, and the file has more members now.
    "members": (
        "a.jsonl.gz",
        gzip.compress(b'{"k": 1}\n'),
        gzip.compress(b'{"k": 2}\n'),
        {"schema": "k int"},
    ),
    # A record without a line end gets one.
    "a record": ("a.jsonl", b'{"k": 1}', b'\n{"k": 2}\n', {"schema": "k int"}),
}


@pytest.mark.parametrize("move", MOVES)
async def test_a_file_that_grew_is_known_under_another_name(tmp_path: Path, move: str) -> None:
    """A file that grew under another name gives its new rows alone."""
    name, first, more, given = MOVES[move]
    (tmp_path / name).write_bytes(first)
    location = await make(tmp_path, **given)
    await take(location)

    path = (tmp_path / name).rename(tmp_path / f"b-{name}")
    with path.open("ab") as file:
        file.write(more)
    await take(location)

    assert await rows_in(location) == ["{'k': 1}", "{'k': 2}"]


async def test_a_header_that_came_first_does_not_hide_what_a_file_was_called(
    tmp_path: Path,
) -> None:
    """A file is recognised under a new name, even if it first had only a header."""
    path = tmp_path / "a.csv"
    path.write_text("k,n\n")
    asked = CsvOptions(header=True, delimiter=",", quote='"', multiline=False)
    location = await make(tmp_path, "k int, n int", format="csv", csv=asked)
    await take(location)
    path.write_text("k,n\n1,1\n")
    await take(location)

    path.rename(tmp_path / "b.csv")
    await take(location)

    assert await rows_in(location) == ["{'k': 1, 'n': 1}"]


async def test_files_of_one_header_are_not_one_file(tmp_path: Path) -> None:
    """A deleted file with only a header is not another file's former name."""
    asked = CsvOptions(header=True, delimiter=",", quote='"', multiline=False)
    location = await make(tmp_path, "k int, n int", format="csv", csv=asked)
    for number, text in enumerate(["k,n\n", "k,n\n1,1\n", "k,n\n1,1\n2,2\n", "k,n\n1,1\n"]):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        os.utime(path, (number, number))
        summary = await take(location)
        assert not any("another name" in note for note in summary.notes.values())
        if number == 0:
            path.unlink()

    assert len(await rows_in(location)) == 4
