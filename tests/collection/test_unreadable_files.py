"""Files that no row can be read from: each is named, with the real cause, and stops no other."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from kit.sources import ingest_files, make_source
from tidelog.collection.create import SourceSpec
from tidelog.collection.ingest.summary import Summary
from tidelog.errors import UsageError
from tidelog.location import Location


class _Keys(pe.KmsClient):
    """Keys that are their own wrapping."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> Any:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: Any, master_key_identifier: str) -> Any:
        return base64.b64decode(wrapped_key)


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


async def location_of(folder: Path, *, format: str, schema: str = "n bigint, x text") -> Location:
    (folder / "in").mkdir()
    spec = SourceSpec(name="c", files=str(folder / "in"), format=format, schema=schema)
    return await make_source(folder / "lake", spec)


@pytest.mark.parametrize("plain_footer", [False, True])
async def test_an_encrypted_parquet_file_is_named_as_one(
    tmp_path: Path, plain_footer: bool
) -> None:
    """With a plain footer, Arrow aborts the process where it is asked for such a column."""
    location = await location_of(tmp_path, format="parquet")
    write_encrypted(tmp_path / "in" / "a.parquet", plain_footer=plain_footer)
    pq.write_table(pa.table({"n": [3], "x": ["c"]}), tmp_path / "in" / "b.parquet")

    done = await ingest_files(location)

    assert (done.rows, done.bad) == (1, 0)
    assert "is encrypted" in done.waiting["a.parquet"]
    with pytest.raises(UsageError, match="is encrypted"):
        await location.create_source(
            SourceSpec(name="d", files=str(tmp_path / "in"), format="parquet")
        )


async def waits(folder: Path, table: pa.Table, **more: Any) -> Summary:
    location = await location_of(folder, format="parquet")
    pq.write_table(table, folder / "in" / "a.parquet")
    return await ingest_files(location, **more)


@pytest.mark.parametrize("versioned", [False, True], ids=["disk", "cloud"])
async def test_a_parquet_file_without_any_known_column_waits(
    tmp_path: Path, versioned: bool
) -> None:
    """Each of its rows would be nulls alone; so the ingester names it, and its columns."""
    table = pa.table({"N": [6, 7], "X": ["p", "q"]})

    done = await waits(tmp_path, table, versioned=versioned)

    assert (done.rows, done.bad) == (0, 0)
    assert "none of the source's columns (n, x); its columns are N, X" in done.waiting["a.parquet"]


@pytest.mark.parametrize("rows", [0, 2])
async def test_a_parquet_file_with_one_known_column_or_no_rows_is_taken(
    tmp_path: Path, rows: int
) -> None:
    """A column that came later is null in earlier files, and a file of no rows loses none."""
    table = pa.table({"y": [1] * rows, "x": ["p"] * rows}) if rows else pa.table({"y": [1][:0]})

    done = await waits(tmp_path, table)

    assert (done.rows, dict(done.waiting)) == (rows, {})
    assert dict(done.dropped) == ({"y": 2} if rows else {})
