"""Json arrays: each element is one row, for any layout of the file and any cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.packing import packed
from kit.sources import contents, ingest_files, lake_of, make_source, table_of
from tidelog.collection.formats.json import arrays as json_arrays
from tidelog.collection.formats.json.arrays import array_lines, array_mark
from tidelog.collection.spec_types import SourceSpec

TEXTS = st.text(alphabet='"\\,[]{}: \nab', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
ELEMENTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=6)


@settings(max_examples=60)
@given(elements=ELEMENTS, indent=st.sampled_from([None, 0, 2]), piece=st.integers(1, 30))
def test_elements_become_lines_where_they_stand(
    elements: list[dict[str, Any]], indent: int | None, piece: int
) -> None:
    """The rewrite keeps offsets, for any text within elements and any piece of the scan."""
    text = json.dumps(elements, indent=indent).encode()
    with patch.object(json_arrays, "PIECE_BYTES", piece):
        lines = array_lines(text, inside=False)

    assert len(lines) == len(text)
    assert [json.loads(line) for line in lines.split(b"\n") if line.strip()] == elements
    # A scan that starts after any element finds the same rest.
    ends = [place + 1 for place, byte in enumerate(lines) if byte == ord("\n")]
    for end in ends:
        assert array_lines(text[end:], inside=True) == lines[end:]


def test_a_string_without_its_quote_spoils_a_line_and_no_more() -> None:
    """It spoils only its own line. A line end within a string stays an error."""
    text = b'[\n{"a": "x},\n{"a": 2},\n{"a": "one\ntwo"}\n]\n'

    lines = array_lines(text, inside=False).split(b"\n")
    assert json.loads(lines[1]) == {"a": 2}
    for bad in (lines[0], lines[2]):
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(bad)


def test_what_is_an_array_is_said_by_its_first_sign() -> None:
    """It is an array after a bracket. A byte order mark and white space may come first."""
    assert array_mark(b'\xef\xbb\xbf \n [{"a": 1}]') == b"["
    assert not array_mark(b'{"a": [1]}')
    assert not array_mark(b"")


ROWS = [{"n": n, "text": f'{n}, ["{n}"]\n{{'} for n in range(20)]


@pytest.mark.parametrize("suffix", ["", ".gz"])
async def test_arrays_are_inferred_and_taken(tmp_path: Path, suffix: str) -> None:
    """Arrays on one line or many decode like json lines, in ticks of any size."""
    (tmp_path / "in").mkdir()
    for name, data in (
        (f"a.json{suffix}", json.dumps(ROWS[:12], indent=2).encode() + b"\n"),
        (f"b.json{suffix}", json.dumps(ROWS[12:16]).encode()),
        (f"c.json{suffix}", b"".join(json.dumps(row).encode() + b"\n" for row in ROWS[16:])),
    ):
        (tmp_path / "in" / name).write_bytes(packed(data, suffix) if suffix else data)
    for number, (bytes_max, versioned) in enumerate([(150, False), (10**8, True)]):
        spec = SourceSpec(name="c", files=str(tmp_path / "in"))
        location = await make_source(tmp_path / str(number), spec)
        summary = await ingest_files(location, bytes_max=bytes_max, versioned=versioned)

        assert (await location.sources.find("c"))[0].format == "json-array"
        assert await contents(location) == sorted(map(repr, ROWS))
        assert not await contents(location, "c_errors")
        assert not summary.waiting


async def test_bad_elements_are_bad_rows(tmp_path: Path) -> None:
    """A bad element is a bad row with its offset in the file. The elements next to it are rows."""
    text = (
        b'[\n  {"n": 1},\n  7,\n  {"n": "x"},\n  {"n": 2,, "m": [},\n  [{"n": 3}],\n  {"n": 4}\n]\n'
    )
    (tmp_path / "a.json").write_bytes(text)
    location = await lake_of(tmp_path, "*.json", format="json-array", schema="n bigint")
    await ingest_files(location, bytes_max=20)

    assert await contents(location) == [repr({"n": 1}), repr({"n": 4})]
    errors = (await table_of(location, "c_errors")).to_pylist()
    assert sorted(text[e["offset"] :].split()[0] for e in errors) == sorted(
        [b"7,", b'{"n":', b'{"n":', b'[{"n":']
    )


async def test_an_array_that_is_torn_waits_and_stops_no_other(tmp_path: Path) -> None:
    """The complete elements of an unclosed array are taken; `--final` takes the rest."""
    (tmp_path / "a.json").write_text('[\n{"n": 1},\n{"n": 2},\n{"n"')
    (tmp_path / "b.json").write_text('[{"n": 3}]')
    location = await lake_of(tmp_path, "*.json", format="json-array", schema="n bigint")

    first = await ingest_files(location)
    assert await contents(location) == [repr({"n": n}) for n in (1, 2, 3)]
    assert list(first.waiting) == ["a.json"]
    assert "array is not closed" in first.waiting["a.json"]
    with (tmp_path / "a.json").open("a") as file:
        file.write(': 4},\n{"n": 5},\n{"x')
    await ingest_files(location)
    assert await contents(location) == [repr({"n": n}) for n in range(1, 6)]
    last = await ingest_files(location, final=True)
    assert (last.bad, last.waiting) == (1, {})
