"""Unreadable files: each is reported with its real cause, and the others are ingested."""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from kit.sources import ingest_files, lake_of, table_of
from tidelog.collection.ingest.summary import Summary
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError


class _Keys(pe.KmsClient):
    """Keys wrapped by plain base64."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> Any:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: Any, master_key_identifier: str) -> Any:
        return base64.b64decode(wrapped_key)


location_of = partial(lake_of, schema="n bigint, x text")


def write_encrypted(path: Path, *, plain_footer: bool) -> None:
    table = pa.table({"n": [1, 2], "x": ["a", "b"]})
    settings = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["n"]}, plaintext_footer=plain_footer
    )
    properties = pe.CryptoFactory(_Keys).file_encryption_properties(
        pe.KmsConnectionConfig(), settings
    )
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("plain_footer", [False, True])
async def test_an_encrypted_parquet_file_is_named_as_one(
    tmp_path: Path, plain_footer: bool
) -> None:
    """With a plain footer, Arrow aborts the process on a read of an encrypted column."""
    location = await location_of(tmp_path, format="parquet")
    write_encrypted(tmp_path / "in" / "a.parquet", plain_footer=plain_footer)
    pq.write_table(pa.table({"n": [3], "x": ["c"]}), tmp_path / "in" / "b.parquet")

    done = await ingest_files(location)

    assert (done.rows, done.bad) == (1, 0)
    assert "is encrypted" in done.waiting["a.parquet"]
    with pytest.raises(UsageError, match="is encrypted"):
        await location.sources.create(SourceSpec(name="d", files=tmp_path / "in", format="parquet"))


def write_wide_integers(path: Path) -> None:
    """Write a column of 128-bit integers as polars writes it."""
    schema, narrow = (
        pa.schema([("n", kind)]).serialize().to_pybytes() for kind in (pa.int64(), pa.int32())
    )
    wide = bytes(a if a == b else 128 for a, b in zip(schema, narrow, strict=True))
    stored: dict[bytes | str, bytes | str] = {"ARROW:schema": base64.b64encode(wide)}
    fields = pa.schema([("n", pa.binary(16))], metadata=stored)
    pq.write_table(pa.table({"n": [bytes(16)]}, schema=fields), path)


async def test_a_parquet_file_of_an_unknown_type_is_named_with_the_type(tmp_path: Path) -> None:
    """Arrow's own error names no remedy, and looks like a defect of tidelog."""
    location = await location_of(tmp_path, format="parquet")
    write_wide_integers(tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"n": [3], "x": ["c"]}), tmp_path / "in" / "b.parquet")

    done = await ingest_files(location)

    assert (done.rows, done.bad) == (1, 0)
    cause = r"a type that cannot be read \(Integers with more than 64 bits.*write"
    assert re.search(cause, done.waiting["a.parquet"])
    with pytest.raises(UsageError, match=cause):
        await location.sources.create(SourceSpec(name="d", files=tmp_path / "in", format="parquet"))


async def waits(folder: Path, table: pa.Table, **more: Any) -> Summary:
    location = await location_of(folder, format="parquet")
    pq.write_table(table, folder / "in" / "a.parquet")
    return await ingest_files(location, **more)


@pytest.mark.parametrize("versioned", [False, True], ids=["disk", "cloud"])
async def test_a_parquet_file_without_any_known_column_waits(
    tmp_path: Path, versioned: bool
) -> None:
    """Each row would contain only nulls, so the ingester reports the file and its columns."""
    table = pa.table({"N": [6, 7], "X": ["p", "q"]})

    done = await waits(tmp_path, table, versioned=versioned)

    assert (done.rows, done.bad) == (0, 0)
    assert "none of the source's columns (n, x); its columns are N, X" in done.waiting["a.parquet"]


@pytest.mark.parametrize("rows", [0, 2])
async def test_a_parquet_file_with_one_known_column_or_no_rows_is_taken(
    tmp_path: Path, rows: int
) -> None:
    """A column added later is null in earlier files. A file without rows loses none."""
    table = pa.table({"y": [1] * rows, "x": ["p"] * rows}) if rows else pa.table({"y": [1][:0]})

    done = await waits(tmp_path, table)

    assert (done.rows, dict(done.waiting)) == (rows, {})
    assert dict(done.dropped) == ({"y": 2} if rows else {})


JSON = b'{"n": 1}\n{"n": 2}\n'
CSV = b"n,x\n1,a\n2,b\n"
FOREIGN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "utf-16": (lambda text: text.decode().encode("utf-16"), "UTF-16"),
    "utf-16 without a mark": (lambda text: text.decode().encode("utf-16-le"), "UTF-16"),
    "zero bytes": (lambda text: bytes(len(text)), "begins with zero bytes"),
    "bzip2": (bz2.compress, "bzip2"),
    "xz": (lzma.compress, "xz"),
    "gzip under another name": (gzip.compress, r"ends in \.gz"),
    "carriage returns": (lambda text: text.replace(b"\n", b"\r"), "carriage return only"),
}


@pytest.mark.parametrize("versioned", [False, True], ids=["disk", "cloud"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "in gzip"])
@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_csv_file_of_another_kind_waits_with_the_real_cause(
    tmp_path: Path, kind: str, packed: bool, versioned: bool
) -> None:
    """The message states the cause. It does not suggest ``--final``, which would not help."""
    change, why = FOREIGN[kind]
    location = await location_of(tmp_path, format="csv")
    name = "a.csv.gz" if packed else "a.csv"
    data = change(CSV)
    (tmp_path / "in" / name).write_bytes(gzip.compress(data) if packed else data)
    (tmp_path / "in" / "b.csv").write_bytes(CSV)

    done = await ingest_files(location, final=True, versioned=versioned)

    assert (done.rows, done.bad) == (2, 0)
    assert re.search(why, done.waiting[name])
    assert "--final" not in done.waiting[name]


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_json_file_of_another_kind_waits_with_the_real_cause(
    tmp_path: Path, kind: str, final: bool
) -> None:
    """The ingester does not split such a file into bad rows, which would hide the cause."""
    change, why = FOREIGN[kind]
    location = await location_of(tmp_path, format="json")
    (tmp_path / "in" / "a.jsonl").write_bytes(change(JSON))
    (tmp_path / "in" / "b.jsonl").write_bytes(JSON)

    done = await ingest_files(location, final=final)

    assert (done.rows, done.bad) == (2, 0)
    assert re.search(why, done.waiting["a.jsonl"])
    assert "--final" not in done.waiting["a.jsonl"]


@pytest.mark.parametrize("format", ["json", "csv"])
@pytest.mark.parametrize("kind", FOREIGN)
async def test_no_schema_is_inferred_from_a_file_of_another_kind(
    tmp_path: Path, kind: str, format: str
) -> None:
    """The error states the cause, not the parser's view of the bytes."""
    change, why = FOREIGN[kind]
    (tmp_path / "a.txt").write_bytes(change(JSON if format == "json" else CSV))

    with pytest.raises(UsageError, match=why):
        await lake_of(tmp_path, "*.txt", format=format, schema=None)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (b'{"n":\r1}', 1),  # White space within an object.
        (b'{"n": 1}\r', 1),  # Half of a line end.
        (b'{"n": 1}\r\n{"n": 2}\r\n', 2),
    ],
)
async def test_a_carriage_return_that_ends_no_line_is_read(
    tmp_path: Path, text: bytes, rows: int
) -> None:
    """Only a file with such line ends waits for a correction."""
    location = await location_of(tmp_path, format="json")
    (tmp_path / "in" / "a.jsonl").write_bytes(text)

    assert (await ingest_files(location, final=True)).rows == rows


async def test_a_line_that_is_no_object_is_a_bad_row_of_a_source_whose_schema_is_inferred(
    tmp_path: Path,
) -> None:
    """The sample for inference may contain such a line. A UTF-8 byte order mark hides no line."""
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n5\n"x"\nnull\n[1]\n{"a": 2}\n')
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 3, "b": 1}\n')
    location = await lake_of(tmp_path, "*.jsonl", schema=None)

    done = await ingest_files(location)
    assert (done.rows, done.bad) == (3, 4)
    assert (await location.collection("c")).schema.names == ["a", "b"]
    errors = (await table_of(location, "c_errors")).to_pylist()
    assert {one["reason"] for one in errors} == {"the line is not a json object"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\n5\n6\n", r"no line of 'a.jsonl' is a json object; line 2 begins with '5'"),
        (b'[]\n{"a": 1}\n', "array at the start of 'a.jsonl' .* ends on line 1, but other text"),
        (b"{\n}\n", r"no line of 'a.jsonl' is a json object; line 1 begins with '{'"),
    ],
)
async def test_files_without_objects_are_refused_by_line(
    tmp_path: Path, text: bytes, why: str
) -> None:
    """The error names the line that the user should look at first."""
    (tmp_path / "a.jsonl").write_bytes(text)

    with pytest.raises(UsageError, match=why):
        await lake_of(tmp_path, "*.jsonl", schema=None)


@pytest.mark.parametrize("runs", [1, 2])
async def test_text_behind_the_end_of_an_array_is_named_as_that(tmp_path: Path, runs: int) -> None:
    """A later run starts after the array, and still recognises that it is closed."""
    location = await lake_of(tmp_path, format="json-array", schema="n bigint")
    (tmp_path / "in" / "a.json").write_bytes(b'[{"n": 1}, {"n": [1]}] \n{"n": 2}\n')
    (tmp_path / "in" / "b.json").write_bytes(b'[{"n": 3},\n{"n": 4}\n')

    for _ in range(runs):
        done = await ingest_files(location)

    assert "its array ends at byte 22, but other text follows" in done.waiting["a.json"]
    assert "its array is not closed yet" in done.waiting["b.json"]


@pytest.mark.parametrize("schema", ["n bigint", "n json"])
async def test_a_line_that_nests_too_deep_is_named_as_that(tmp_path: Path, schema: str) -> None:
    """The error of a line that is nested too deep states that. The line may be valid json."""
    location = await location_of(tmp_path, format="json", schema=schema)
    deep = b'{"s": "[[[", "n": ' + b"[" * 3_000 + b"]" * 3_000 + b"}\n"
    (tmp_path / "in" / "a.jsonl").write_bytes(deep + b'{"n": 1}\n')

    assert (await ingest_files(location)).bad == 1
    errors = (await table_of(location, "c_errors")).to_pylist()
    reason = "the line nests arrays or objects 3,001 deep; 800 levels can be read"
    assert [one["reason"] for one in errors] == [reason]
