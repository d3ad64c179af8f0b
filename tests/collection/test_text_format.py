"""The format text: each line of a file is a row with one column of text."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.packing import packed
from kit.sources import contents, ingest_files, lake_of, table_of
from tidelog.collection.formats.records import listed
from tidelog.collection.formats.text import LINE, TEXT_COLUMNS, decode_text
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError

LINES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"), max_size=8), max_size=8
)


@settings(max_examples=100)
@given(lines=LINES, end=st.sampled_from(["\n", "\r\n"]), has_end=st.booleans())
def test_each_line_is_a_row_with_its_offset(lines: list[str], end: str, has_end: bool) -> None:
    """A row has the text of its line without its end, and the offset of the line."""
    text = end.join(lines) + end * has_end
    data = text.encode()
    records = decode_text(data, TEXT_COLUMNS, base=0)

    wanted = [line for line in lines if line.strip(" \t")]
    assert records.table.column(LINE).to_pylist() == wanted
    assert not records.misfits
    for row, offset in enumerate(records.offsets.tolist()):
        assert data[offset:].startswith(wanted[row].encode())
        assert not offset or data[offset - 1 : offset] == b"\n"


def test_a_line_that_is_not_text_is_bad_and_others_are_rows() -> None:
    """A byte order mark is no part of the first line; a line of other bytes is a bad row."""
    data = b"\xef\xbb\xbfone\nbad \xff\n  two \n"
    records = decode_text(data, TEXT_COLUMNS, base=0)

    assert records.table.column(LINE).to_pylist() == ["one", "  two "]
    assert records.offsets.tolist() == [3, 13]
    assert [(one.offset, one.reason) for one in records.misfits] == [(7, "the line is not UTF-8")]
    assert listed(records.texts(records.offsets.argsort())) == ["one", "  two "]


@pytest.mark.parametrize("suffix", ["", ".gz"])
async def test_files_are_ingested_by_lines(tmp_path: Path, suffix: str) -> None:
    """Lines of any form become rows, in ticks of any size; `final` takes a last one without end."""
    lines = ['{"n": 1}', "a,b", " spaces ", "[1]", "z\u00fcrich"]
    data = "".join(f"{line}\n" for line in lines).encode() + b'\n{"last": 1}'
    (tmp_path / f"a.log{suffix}").write_bytes(packed(data, suffix) if suffix else data)
    location = await lake_of(tmp_path, f"*.log{suffix}", format="text", schema=None)
    await ingest_files(location, bytes_max=12)
    assert await contents(location) == sorted(repr({LINE: line}) for line in lines)

    await ingest_files(location, bytes_max=12, final=True)
    assert await contents(location) == sorted(
        repr({LINE: line}) for line in [*lines, '{"last": 1}']
    )


async def test_bad_lines_are_bad_rows_and_blank_lines_are_none(tmp_path: Path) -> None:
    """A line that is not UTF-8 is in the errors, with its offset; the column's name is free."""
    (tmp_path / "a.log").write_bytes(b"one\n\n \t\ntwo \xff\nthree\n")
    location = await lake_of(tmp_path, "*.log", format="text", schema="raw varchar")
    await ingest_files(location)

    assert await contents(location) == [repr({"raw": "one"}), repr({"raw": "three"})]
    errors = (await table_of(location, "c_errors")).to_pylist()
    assert [(one["offset"], one["reason"]) for one in errors] == [(8, "the line is not UTF-8")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"envelope": "upsert", "key": ("line",)}, "with one column: remove envelope="),
        ({"time_column": "line"}, "remove time_column="),
        ({"evolve": True}, "remove evolve="),
        ({"ignore_case": True}, "remove ignore_case="),
        ({"schema": "a varchar, b varchar"}, "one column of text"),
        ({"schema": "a bigint"}, "one column of text"),
    ],
)
async def test_options_of_other_formats_are_refused(
    tmp_path: Path, given: dict[str, object], told: str
) -> None:
    """Text has one column and nothing to decode, so options about columns are errors."""
    (tmp_path / "a.log").write_text("one\n")
    with pytest.raises(UsageError, match=told):
        await lake_of(tmp_path, "*.log", **{"format": "text", "schema": None, **given})


async def test_a_column_cannot_be_added(tmp_path: Path) -> None:
    """A source of text has one column for good."""
    (tmp_path / "a.log").write_text("one\n")
    location = await lake_of(tmp_path, "*.log", format="text", schema=None)
    with pytest.raises(UsageError, match="reads text"):
        await location.sources.alter("c", add="n bigint")


def test_no_files_are_needed_to_create_a_source() -> None:
    """The columns of text do not depend on files."""
    SourceSpec(name="c", files="./none", format="text").check()
    assert pa.schema([("line", pa.string())]) == TEXT_COLUMNS
