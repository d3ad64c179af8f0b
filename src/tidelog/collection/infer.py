"""Inferring a source's schema from a sample of its files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

import duckdb
import pyarrow as pa

from tidelog.collection.decode_parquet import footer_bytes, read_footer
from tidelog.collection.dialect import CsvDialect
from tidelog.collection.lines import record_ends
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.duck import duck
from tidelog.persist.schema import canonical_type
from tidelog.store.port import Entry, Store

FILES_MAX = 8
MULTILINE = CsvDialect(multiline=True)
FILE_BYTES_MAX = 2 * 1024 * 1024


async def infer_schema(entries: Sequence[Entry], *, format: str, store: Store) -> pa.Schema:
    """Infer columns and types from the first files' first 2 MiB each.

    Raises:
        UsageError: there is nothing to infer from, or it cannot be read as ``format``.
    """
    if not entries:
        raise UsageError(
            "the files are none yet, so no schema can be inferred: give one with "
            "--schema 'name type, ...', or correct --files"
        )
    if format == "parquet":
        return await _parquet_schema(entries[0], store)
    samples = [
        (await store.get(entry.key, limit=FILE_BYTES_MAX)).data for entry in entries[:FILES_MAX]
    ]
    if format == "csv":
        return sample_schema(whole_records(samples[0], MULTILINE), format=format)
    lines = b"".join(whole_records(s).rstrip(b"\n") + b"\n" for s in samples)
    return sample_schema(lines, format=format)


def whole_records(sample: bytes, dialect: CsvDialect | None = None) -> bytes:
    """Return a sample without the record that its end cuts."""
    if len(sample) < FILE_BYTES_MAX:
        return sample
    ends = record_ends(sample, dialect, final=False)
    return sample[: int(ends[-1])] if len(ends) else sample


def sample_schema(sample: bytes, *, format: str) -> pa.Schema:
    """Infer the schema of text."""
    reader = (
        "read_json(?, format = 'newline_delimited', sample_size = -1, ignore_errors = true, "
        "map_inference_threshold = -1)"
        if format == "json"
        else "read_csv(?, header = true, sample_size = -1, delim = ',', quote = '\"')"
    )
    with tempfile.TemporaryDirectory(prefix="tidelog-") as folder, duck() as connection:
        path = os.path.join(folder, "sample")
        with open(path, "wb") as file:
            file.write(sample)
        try:
            found = connection.execute(f"DESCRIBE SELECT * FROM {reader}", [path]).fetchall()
            columns = ", ".join(f'"{name}" {_plain(kind)}' for name, kind, *_ in found)
            connection.execute(f"CREATE OR REPLACE TEMP TABLE sampled ({columns})")
            schema = connection.sql("SELECT * FROM sampled").to_arrow_table().schema
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            raise UsageError(
                f"the files cannot be read as {format}: {why}; correct --format, or give --schema"
            ) from error
    if format == "json" and schema.names == ["json"]:
        raise UsageError("the files' lines are no json objects: correct --format, or give --schema")
    return pa.schema([pa.field(f.name, canonical_type(f.type)) for f in schema])


def _plain(kind: str) -> str:
    """Return the type that a column gets: what has no type of ours is kept as text."""
    if kind in ("JSON", "UUID", '"NULL"', "NULL"):
        return "VARCHAR"
    return "DECIMAL(38, 0)" if kind in ("HUGEINT", "UHUGEINT") else kind


async def _parquet_schema(entry: Entry, store: Store) -> pa.Schema:
    try:
        tail = (await store.get(entry.key, start=max(0, entry.size_bytes - 8))).data
        footer = (await store.get(entry.key, start=entry.size_bytes - footer_bytes(tail))).data
        schema = read_footer(footer).schema.to_arrow_schema()
    except CorruptionError as error:
        raise UsageError(f"{entry.key!r} cannot be read as parquet: correct --format") from error
    return pa.schema([pa.field(f.name, canonical_type(f.type)) for f in schema])
