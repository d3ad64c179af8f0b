"""Rows that break the code: each is a bad row, and ingestion continues."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kit.decoding import decoded as decoded_range
from kit.decoding import info_of, parquet, range_of
from kit.sources import lake_of, run_once
from tidelog.collection.formats import casts
from tidelog.collection.formats.casts import FitResult
from tidelog.collection.formats.csv import decode as decode_csv
from tidelog.collection.formats.json import decode as decode_json
from tidelog.collection.formats.lines import CsvDialect
from tidelog.collection.formats.parquet import pack_range
from tidelog.collection.ingest import compute
from tidelog.collection.ingest.compute import Job, Target, shape_messages
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.status import source_status
from tidelog.collection.source import decode, survey
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import ROW_BYTES_MAX, DecodedRows, decode_file
from tidelog.collection.source.survey_result import look_at_text
from tidelog.errors import InvariantError
from tidelog.location import Location
from tidelog.persist.format.schema import shard_schema

COLUMNS: dict[str, pa.DataType] = {"n": pa.int64(), "s": pa.string()}
WANTED = pa.schema(COLUMNS)
POISON = (3, 44, 45)
COUNT = 100
HEADER = b"n,s\n"
TEXT = {
    "json": "".join(f'{{"n": {n}, "s": "row {n}"}}\n' for n in range(COUNT)).encode(),
    "csv": HEADER + "".join(f'{n},"row\n{n}"\n' for n in range(COUNT)).encode(),
}


class LibraryError(Exception):
    """A library's exception that tidelog does not expect."""


def decoded(data: bytes, format: str) -> DecodedRows:
    header, dialect = HEADER if format == "csv" else b"", CsvDialect(multiline=True)
    return decoded_range(
        data, WANTED, format=format, header=header, dialect=dialect, required=["n"]
    )


def check(found: DecodedRows, reason: str) -> None:
    assert found.rows.column("n").to_pylist() == [n for n in range(COUNT) if n not in POISON]
    assert found.errors.column("reason").to_pylist() == [reason] * len(POISON)
    whole = [
        *found.rows.column("_tidelog_offset").to_pylist(),
        *found.errors.column("offset").to_pylist(),
    ]
    assert len(set(whole)) == COUNT


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_record_that_breaks_a_parser_is_a_bad_record(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser raises an unknown error, and its name is the reason."""
    place: Any = decode_json if format == "json" else decode_csv._Records
    name = "_read" if format == "json" else "parse"
    parse = getattr(place, name)

    def breaking(*given: Any, **more: Any) -> Any:
        chunk = given[0]
        if format == "csv":
            records, rows = given
            chunk = b"".join(records.record(int(row)) for row in rows)
        for n in POISON:
            if (b'"row %d"' % n if format == "json" else b'"row\n%d"' % n) in chunk:
                raise LibraryError
        return parse(*given, **more)

    monkeypatch.setattr(place, name, breaking)

    found = decoded(TEXT[format], format)

    check(found, "the record cannot be decoded: LibraryError")
    texts = found.errors.column("text").to_pylist()
    assert all("row" in str(text) for text in texts)


def test_records_that_all_break_a_parser_are_bad_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is a bad one, and there are no rows."""

    def breaking(*given: Any, **more: Any) -> Any:
        raise LibraryError

    monkeypatch.setattr(decode_csv._Records, "parse", breaking)

    found = decoded(TEXT["csv"], "csv")

    assert found.rows.num_rows == 0
    assert found.rows.column_names == ["n", "s", "_tidelog_offset"]
    assert found.errors.num_rows == COUNT


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_row_that_breaks_a_cast_is_a_bad_row(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that breaks a cast is a bad row, in each format."""
    fit = casts.fit

    def breaking(wire: pa.Table, wanted: pa.Schema, *more: Any) -> FitResult:
        values = pc.cast(wire.column("n"), pa.int64())
        if pc.any(pc.is_in(values, pa.array(POISON, pa.int64()))).as_py():
            raise LibraryError
        return fit(wire, wanted, *more)

    monkeypatch.setattr(decode, "fit", breaking)
    if format == "parquet":
        table = pa.table({"n": range(COUNT), "s": [f"row {n}" for n in range(COUNT)]})
        file, footer = parquet(table, row_group_size=30)
        found = decoded(pack_range(footer, file[4:]), format)
    else:
        found = decoded(TEXT[format], format)

    check(found, "the record cannot be decoded: LibraryError")


def test_a_row_group_that_cannot_be_read_is_one_bad_record() -> None:
    """The other row groups are rows. The error states the number of lost rows."""
    table = pa.table({"n": range(COUNT), "s": [f"row {n}" for n in range(COUNT)]})
    file, footer = parquet(table, row_group_size=25, compression="zstd", use_dictionary=False)
    column = pq.read_metadata(io.BytesIO(file)).row_group(1).column(0)
    middle = column.data_page_offset + column.total_compressed_size // 2
    broken = file[: middle - 8] + b"\xff" * 16 + file[middle + 8 :]

    found = decoded(pack_range(footer, broken[4:]), "parquet")

    assert found.rows.column("n").to_pylist() == [*range(25), *range(50, 100)]
    (error,) = found.errors.to_pylist()
    assert (error["offset"], error["text"]) == (25, "25 rows from this one")
    assert str(error["reason"]).startswith("the row group cannot be read: ")


def test_a_row_on_which_the_delete_condition_fails_is_a_bad_row() -> None:
    """The row may or may not delete its key. The other rows do not wait."""
    schema = shard_schema(WANTED, key=["n"])
    source = info_of(envelope="upsert", key=("n",), delete_when="n * n > 0")
    lines = b'{"n": 0}\n{"n": 1}\n{"n": 5000000000}\n{"n": -7000000000}\n'
    target = Target(shard="x", write_epoch=0, may_inline=True)
    found = range_of(lines)
    job = Job(
        source=source,
        schema=schema.encoded,
        lower=0,
        upper=10,
        ranges=(found,),
        shards=(target,),
        errors=target,
    )

    shaped = shape_messages(lines, found, 0, job)

    deletes = zip(
        *(shaped.messages.column(n).to_pylist() for n in ("n", "_tidelog_delete")), strict=True
    )
    assert list(deletes) == [(0, False), (1, True)]
    assert shaped.errors.column("offset").to_pylist() == [18, 36]
    assert set(shaped.errors.column("reason").to_pylist()) == {
        "the condition delete_when fails on the row"
    }
    assert np.all(shaped.messages.column("_time").to_numpy() == 9)


async def lake_with(folder: Path, *files: str, schema: str = "n bigint") -> Location:
    for place, text in enumerate(files):
        (folder / f"{place}.jsonl").write_text(text)
    return await lake_of(folder, "*.jsonl", schema=schema)


def rows_break(rows: pa.Table) -> None:
    """Raise if one of the rows is poisonous."""
    if set(POISON) & set(rows.column("n").to_pylist()):
        raise LibraryError


@pytest.mark.parametrize("step", ["stamp_rows", "apply_none", "check_updates"])
async def test_a_row_that_breaks_what_is_done_with_it_is_a_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The failing step may be the time, the updates or their check."""
    work = getattr(compute, step)

    def breaking(rows: pa.Table, *given: Any, **more: Any) -> Any:
        if "n" in rows.column_names:
            rows_break(rows)
        return work(rows, *given, **more)

    monkeypatch.setattr(compute, step, breaking)
    location = await lake_with(tmp_path, "".join(f'{{"n": {n}}}\n' for n in range(COUNT)))

    summary = await run_once(await location.sources.ingester("c"))
    assert (summary.rows, summary.bad) == (COUNT - len(POISON), len(POISON))
    errors = (await (await location.collection("c_errors")).consolidated()).to_pylist()
    assert {e["reason"] for e in errors} == {"the row cannot be used: LibraryError"}


async def test_what_no_row_is_to_blame_for_is_told_with_its_file_and_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later user sees the file and offset in `source status`, and can skip the file."""
    location = await lake_with(tmp_path, '{"n": 1}\n', '{"n": 2}\n')

    def breaking(data: bytes, found: FileRange, *given: Any, **more: Any) -> Any:
        if found.path == "0.jsonl":
            raise LibraryError("no such thing")
        return decode_file(data, found, *given, **more)

    monkeypatch.setattr(compute, "decode_file", breaking)
    with pytest.raises(InvariantError):
        await run_once(await location.sources.ingester("c"))

    status = await source_status(await location.sources.ingester("c"))
    assert status.run is not None
    told = "tidelog failed at the file '0.jsonl' from offset 0: LibraryError: no such thing"
    assert (status.run.error, status.run.error_kind) == (told, "invariant")
    await location.sources.skip("c", "0.jsonl")
    assert (await run_once(await location.sources.ingester("c"))).rows == 1


async def test_an_error_of_no_file_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure, the status must not show the last good run."""
    location = await lake_with(tmp_path, '{"n": 1}\n')

    def breaking(*_: object) -> None:
        raise LibraryError

    monkeypatch.setattr(Ingester, "_mint", breaking)
    with pytest.raises(InvariantError, match="the source 'c': LibraryError"):
        await run_once(await location.sources.ingester("c"))
    status = await source_status(await location.sources.ingester("c"))
    assert status.run is not None
    assert "LibraryError" in (status.run.error or "")


async def test_a_new_file_that_breaks_the_survey_waits_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that breaks the survey waits. Nothing of it is bound, so the other files continue."""
    location = await lake_with(tmp_path, '{"n": 1}\n', '{"n": 2}\n')

    def breaking(data: bytes, *given: Any, **more: Any) -> Any:
        if b"1" in data:
            raise LibraryError
        return look_at_text(data, *given, **more)

    monkeypatch.setattr(survey, "look_at_text", breaking)
    summary = await run_once(await location.sources.ingester("c"))
    assert (summary.rows, summary.waiting) == (
        1,
        {"0.jsonl": "tidelog failed at offset 0: LibraryError"},
    )


async def test_a_file_whose_name_is_no_text_waits_and_stops_no_other(tmp_path: Path) -> None:
    """Old archives contain names that are not text, which no binding can record."""
    location = await lake_with(tmp_path, '{"n": 1}\n', '{"n": 2}\n')
    (tmp_path / os.fsdecode(b"Z\xfcrich.jsonl")).write_text('{"n": 3}\n')

    summary = await run_once(await location.sources.ingester("c"))

    assert summary.rows == 2
    assert summary.waiting == {r"Z\xfcrich.jsonl": "its name is not UTF-8: rename it"}


async def test_a_row_that_is_larger_than_a_shard_takes_is_a_bad_row(tmp_path: Path) -> None:
    """A binding of so large a row would stop the source, and a user could not skip it."""
    sizes = (0, 9_000_000, ROW_BYTES_MAX - 100, 7)
    lines = [json.dumps({"n": n, "s": "x" * size}) + "\n" for n, size in enumerate(sizes)]
    files = lines[0] + lines[1], lines[2] + lines[3]
    location = await lake_with(tmp_path, *files, schema="n bigint, s varchar")

    summary = await run_once(await location.sources.ingester("c"))

    assert (summary.rows, summary.bad) == (3, 1)
    rows = await (await location.collection("c")).consolidated()
    assert {*rows.column("n").to_pylist()} == {0, 2, 3}
    errors = (await (await location.collection("c_errors")).consolidated()).to_pylist()
    assert [(e["file"], e["offset"], len(e["text"])) for e in errors] == [("0.jsonl", 18, 4_096)]
    assert "over 8 MB" in errors[0]["reason"]
