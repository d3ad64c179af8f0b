"""Inferring a source's schema from a sample of its files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

import duckdb
import msgspec
import pyarrow as pa

from tidelog.collection.csv_guess import CsvOptions, guess_csv
from tidelog.collection.decode_parquet import footer_bytes, read_footer
from tidelog.collection.dialect import CsvDialect
from tidelog.collection.lines import record_ends
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.duck import duck, quoted
from tidelog.persist.schema import canonical_type
from tidelog.store.port import Entry, Store

FILES_MAX = 8
FILE_BYTES_MAX = 2 * 1024 * 1024


async def infer_schema(entries: Sequence[Entry], *, format: str, store: Store) -> pa.Schema:
    """Infer the columns of json or parquet from the first files' first 2 MiB each.

    Raises:
        UsageError: there is nothing to infer from, or it cannot be read as ``format``.
    """
    if not entries:
        raise no_files()
    if format == "parquet":
        return await _parquet_schema(entries[0], store)
    samples = [
        (await store.get(entry.key, limit=FILE_BYTES_MAX)).data for entry in entries[:FILES_MAX]
    ]
    lines = b"".join(whole_records(s).rstrip(b"\n") + b"\n" for s in samples)
    return sample_schema(lines)


def no_files() -> UsageError:
    return UsageError(
        "the files are none yet, so no schema can be inferred: give one with "
        "--schema 'name type, ...', or correct --files"
    )


async def infer_csv(
    entries: Sequence[Entry], options: CsvOptions, columns: pa.Schema | None, *, store: Store
) -> tuple[CsvDialect, pa.Schema | None]:
    """Infer how csv is written, and its columns' types, from the first file's first 2 MiB.

    Without files, what is said is all there is; the types are then None.

    Raises:
        UsageError: the file cannot be read as csv.
    """
    if not entries:
        names = tuple(columns.names) if columns is not None and options.header is False else ()
        return msgspec.structs.replace(options.dialect(), names=names), None
    sample = (await store.get(entries[0].key, limit=FILE_BYTES_MAX)).data
    try:
        return guess_csv(sample, options, columns, cut=len(sample) >= FILE_BYTES_MAX)
    except ValueError as error:
        raise UsageError(
            f"{entries[0].key!r} cannot be read as csv: in its first line {error}; correct "
            "--format, --delimiter or --quote"
        ) from error


def whole_records(sample: bytes) -> bytes:
    """Return a sample without the line that its end cuts."""
    if len(sample) < FILE_BYTES_MAX:
        return sample
    ends = record_ends(sample)
    return sample[: int(ends[-1])] if len(ends) else sample


def sample_schema(sample: bytes) -> pa.Schema:
    """Infer the schema of json lines."""
    reader = (
        "read_json(?, format = 'newline_delimited', sample_size = -1, ignore_errors = true, "
        "map_inference_threshold = -1)"
    )
    with tempfile.TemporaryDirectory(prefix="tidelog-") as folder, duck() as connection:
        path = os.path.join(folder, "sample")
        with open(path, "wb") as file:
            file.write(sample)
        try:
            found = connection.execute(f"DESCRIBE SELECT * FROM {reader}", [path]).fetchall()
            columns = ", ".join(f"{quoted(name)} {_plain(kind)}" for name, kind, *_ in found)
            connection.execute(f"CREATE OR REPLACE TEMP TABLE sampled ({columns})")
            schema = connection.sql("SELECT * FROM sampled").to_arrow_table().schema
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            raise UsageError(
                f"the files cannot be read as json: {why}; correct --format, or give --schema"
            ) from error
    if schema.names == ["json"]:
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
