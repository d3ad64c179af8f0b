"""Inference of a source's schema from samples of its files."""

from __future__ import annotations

import codecs
import json
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.collection.formats.avro.container import AVRO_FORMAT
from tidelog.collection.formats.avro.container import MAGIC as AVRO_MAGIC
from tidelog.collection.formats.avro.schema import (
    AvroSchema,
    changed_avro_types,
    parse_avro_schema,
)
from tidelog.collection.formats.casts import fit
from tidelog.collection.formats.csv.guess import CsvOptions, guess_csv
from tidelog.collection.formats.foreign import OLD_LINE_ENDS, has_old_line_ends, why_foreign
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT, array_end
from tidelog.collection.formats.json.decode import decode_json
from tidelog.collection.formats.json.texts import UNNAMEABLE
from tidelog.collection.formats.lines import CsvDialect, record_ends
from tidelog.collection.formats.names import match_names, spelled_once
from tidelog.collection.formats.packed.packed import BINARY_FORMATS
from tidelog.collection.formats.parquet import MAGIC, changed_types, footer_bytes, read_footer
from tidelog.collection.formats.types import is_json, json_field, plain_type, without_maps
from tidelog.collection.source.fetch import OpenedFile, read_avro_header
from tidelog.collection.source.sample import FILE_BYTES_MAX, FileSample, read_sample
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.format.duck import duck, quoted
from tidelog.persist.format.schema import OWN_PREFIX, canonical_type, differ_by_case
from tidelog.store.port import Entry, Store
from tidelog.store.urls import without_secrets

_QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')
_MIXED: Final = re.compile(r"\b(?:JSON|MAP)\b")
_INTEGER: Final = "^-?[0-9]{1,38}$"
_WHOLE: Final = pa.decimal128(38, 0)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENDINGS: Final = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".avro": AVRO_FORMAT}
FILES_MAX = 8
# DuckDB infers a map for objects with many fields of one type. Two added fields of other types
# prevent that.
_APART: Final = re.compile(rb"^\{\s*(\}?)", re.MULTILINE)
_APART_NAMES: Final = (OWN_PREFIX + "list", OWN_PREFIX + "struct")
_APART_FIELDS: Final = '{{"{}": [true], "{}": {{"a": true}}'.format(*_APART_NAMES).encode()


async def infer_schema(
    entries: Sequence[Entry],
    *,
    format: str,
    store: Store,
    places: Sequence[str],
    ignore_case: bool = False,
) -> pa.Schema:
    """Infer the columns of json, parquet or avro from the first files' first 2 MiB each.

    Raises:
        UsageError: the ``places`` have no data to infer from, or the data are not of ``format``.
    """
    if not entries:
        raise no_files(places)
    if format in BINARY_FORMATS:
        return await _typed_schema(entries, store, format)
    samples = [await read_sample(entry, store) for entry in entries[:FILES_MAX]]
    found = _inked(_readable(entries, samples))
    if not found:
        raise no_files(places)
    sample = b"".join(one.lines(format).rstrip(b"\n") + b"\n" for one in found)
    if _names_in(sample) is None:
        raise UsageError(_why_no_object(found[0], entries[0].key, format))
    return sample_schema(_spelled_alike(sample) if ignore_case else sample)


def _spelled_alike(sample: bytes) -> bytes:
    """Return lines with each name in its first spelling, and once in a line."""
    lines = sample.split(b"\n")
    names: dict[str, None] = {}
    for line in lines:
        with suppress(msgspec.MsgspecError, RecursionError):
            names.update(dict.fromkeys(_FIELDS.decode(line)))
    return b"\n".join(_of_names(line, spelled_once(names)) for line in lines)


def _of_names(line: bytes, wanted: Sequence[str]) -> bytes:
    try:
        found = _FIELDS.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return line
    named = zip(match_names(list(found), wanted), found.values(), strict=True)
    return msgspec.json.encode({name: value for name, value in named if name in wanted})


def _why_no_object(sample: FileSample, name: str, format: str) -> str:
    """Return the reason why files have no json objects, with the first line of the first file."""
    is_array = format == ARRAY_FORMAT and sample.is_array
    end = array_end(sample.text, inside=False) if is_array else None
    if end is not None and sample.text[end:].strip():
        line = sample.text.count(b"\n", 0, end) + 1
        return (
            f"the array at the start of {name!r} has no objects and ends on line {line}, but "
            "other text follows it: correct the file, or pass schema= to read it by lines"
        )
    if len(sample.text) >= FILE_BYTES_MAX and not len(record_ends(sample.lines(format))):
        return _too_long("element of the array" if is_array else "line", name)
    lines = sample.text.removeprefix(codecs.BOM_UTF8).split(b"\n")
    place = next(n for n, line in enumerate(lines) if line.strip())
    begin = lines[place].strip()[:40].decode("utf-8", errors="replace")
    why = f"no line of {name!r} is a json object; line {place + 1} begins with {begin!r}"
    told = _format_told(name)
    if told is not None:
        return f"{why}; the file's name suggests {told}: add format='{told}'"
    return f"{why}; correct the file or format=, or pass schema="


def _too_long(what: str, name: str) -> str:
    return (
        f"the first {what} of {name!r} is longer than {FILE_BYTES_MAX >> 20} MiB, the part of a "
        "file from which a schema is inferred: pass schema='name type, ...'"
    )


async def are_arrays(entries: Sequence[Entry], store: Store) -> bool:
    """Return True if json files are arrays; the first file decides for all.

    Raises:
        LocationError: the store failed.
    """
    return bool(entries) and (await read_sample(entries[0], store)).is_array


def no_files(places: Sequence[str]) -> UsageError:
    return UsageError(
        f"no data at {' and '.join(map(without_secrets, places))} to infer a schema from: no "
        "files, or only empty ones; correct files=, or pass schema='name type, ...'"
    )


def _format_told(name: str) -> str | None:
    """Return the format, other than json, of a file's suffix; None without such a suffix."""
    return next((told for end, told in _ENDINGS.items() if end in name.lower()[-12:]), None)


def _inked(samples: Sequence[FileSample]) -> list[FileSample]:
    """Return the samples that are not blank."""
    return [one for one in samples if one.text.removeprefix(codecs.BOM_UTF8).strip()]


async def infer_csv(
    entries: Sequence[Entry], options: CsvOptions, columns: pa.Schema | None, *, store: Store
) -> tuple[CsvDialect, pa.Schema | None]:
    """Infer the csv dialect and the columns from the first 2 MiB of each of the first files.

    The first readable file decides the dialect. Without files, or if all of them are blank, return
    the dialect of the given options, and None for the columns.

    Raises:
        UsageError: no file can be read as csv; the message has the reason for the first one.
    """
    samples = [await read_sample(entry, store) for entry in entries[:FILES_MAX]]
    readable = _inked(_readable(entries, samples)) if entries else []
    if not readable:
        names = tuple(columns.names) if columns is not None and options.header is False else ()
        return msgspec.structs.replace(options.dialect(), names=names), None
    if columns is None and _names_in(readable[0].text.lstrip().split(b"\n", 1)[0]) is not None:
        raise UsageError(f"{entries[0].key!r} begins with a json object: remove format='csv'")
    if (
        columns is None
        and len(readable[0].text) >= FILE_BYTES_MAX
        and b"\n" not in readable[0].text
    ):
        raise UsageError(_too_long("line", entries[samples.index(readable[0])].key))
    found = [(one.text, one.is_cut) for one in readable]
    why: ValueError | None = None
    for place, (text, is_cut) in enumerate(found):
        try:
            return guess_csv(text, options, columns, cut=is_cut, others=found[place + 1 :])
        except ValueError as error:
            why = why or error
    if isinstance(why, UnicodeDecodeError):
        raise UsageError(
            f"{entries[0].key!r} cannot be read as csv: some bytes are not UTF-8; convert the "
            "file, for example with iconv -t UTF-8, or correct format="
        ) from why
    raise UsageError(
        f"{entries[0].key!r} cannot be read as csv: in its first line, {why}; correct format=, "
        "delimiter= or quote="
    ) from why


def _readable(entries: Sequence[Entry], samples: Sequence[FileSample]) -> list[FileSample]:
    """Return the samples that are UTF-8 text.

    Raises:
        UsageError: no file can be decompressed, or no file is UTF-8 text.
    """
    found = [sample for sample in samples if sample.why is None]
    if not found:
        raise UsageError(
            f"{entries[0].key!r} cannot be decompressed: {samples[0].why}; correct the file, or "
            "its name"
        )
    plain = [sample for sample in found if _why_no_text(sample.text) is None]
    if not plain:
        first = next(e for e, s in zip(entries, samples, strict=False) if s.why is None)
        if found[0].text.startswith(MAGIC):
            raise UsageError(f"{first.key!r} is a parquet file: add format='parquet'")
        if found[0].text.startswith(AVRO_MAGIC):
            raise UsageError(f"{first.key!r} is an avro file: add format='avro'")
        raise UsageError(f"{first.key!r} cannot be read: {_why_no_text(found[0].text)}")
    return plain


def _why_no_text(text: bytes) -> str | None:
    """Return the reason why a sample cannot be read as records of text; None if it can."""
    if (why := why_foreign(text)) is not None:
        return why
    if not has_old_line_ends(text, b'"'):
        return None
    # In json, a carriage return is white space.
    is_json = text.lstrip()[:1] == b"[" or _names_in(text) is not None
    return None if is_json else OLD_LINE_ENDS


def sample_schema(sample: bytes) -> pa.Schema:
    """Infer the schema of json lines; lines that are not objects are ignored: they are bad rows."""
    import duckdb

    lines = [line.removeprefix(codecs.BOM_UTF8).strip() for line in sample.split(b"\n")]
    sample = b"".join(one + b"\n" for one in lines if one[:1] == b"{" and one[-1:] == b"}")
    reader = "read_json(?, format = 'newline_delimited', sample_size = -1, ignore_errors = true)"
    with tempfile.TemporaryDirectory(prefix="tidelog-") as folder, duck() as connection:
        path = os.path.join(folder, "sample")
        with open(path, "wb") as file:
            file.write(sample)
        try:
            found = connection.execute(f"DESCRIBE SELECT * FROM {reader}", [path]).fetchall()
            names = _names_in(sample)
            if [name for name, *_ in found] == ["json"] and names and "json" not in names:
                # DuckDB makes a map of more than 200 fields of one type: see `_APART`.
                with open(path, "wb") as file:
                    file.write(_APART.sub(_apart, sample))
                found = connection.execute(f"DESCRIBE SELECT * FROM {reader}", [path]).fetchall()
                found = [one for one in found if one[0] not in _APART_NAMES]
            columns = ", ".join(f"{quoted(name)} {_plain(kind)}" for name, kind, *_ in found)
            connection.execute(f"CREATE OR REPLACE TEMP TABLE sampled ({columns})")
            schema = connection.sql("SELECT * FROM sampled").to_arrow_table().schema
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            raise UsageError(
                f"the files cannot be read as json: {why}; correct format=, or pass schema="
            ) from error
    _check_names(found, names)
    mixed = {name for name, kind, *_ in found if _is_mixed(kind)}
    mixed |= {field.name for field in schema if _has_null(field.type)}
    plain = [pa.field(f.name, canonical_type(f.type)) for f in schema]
    return _settled(pa.schema([_wider(f) if f.name in mixed else f for f in plain]), sample)


def _apart(begin: re.Match[bytes]) -> bytes:
    return _APART_FIELDS + (begin[1] or b", ")


def _names_in(sample: bytes) -> frozenset[str] | None:
    """Return the names of the lines' fields; None if no line is an object."""
    found: set[str] = set()
    objects = 0
    for line in sample.split(b"\n"):
        try:
            fields: Any = _FIELDS.decode(line)
        except msgspec.MsgspecError:
            try:
                fields = json.loads(line)  # Python's parser accepts NaN.
            except (ValueError, RecursionError):
                continue
        if isinstance(fields, dict):
            objects += 1
            found.update(fields)
    return frozenset(found) if objects else None


def _check_names(columns: Sequence[tuple[Any, ...]], names: frozenset[str] | None) -> None:
    """Check that the inferred columns are names of the lines' fields.

    DuckDB invents or cuts a name that SQL cannot express.

    Raises:
        UsageError: a column is not a field of the lines, or there are no columns.
    """
    if names is None:
        raise UsageError("the files' lines are not json objects: correct format=, or pass schema=")
    if [name for name, *_ in columns] == ["json"] and "json" not in names:
        raise UsageError(_why_no_columns(names))
    for name, kind, *_ in columns:
        if "\0" in name or "\0" in kind:
            raise UsageError(
                f"the field {name!r}, or one within it, has a NUL in its name, which SQL cannot "
                "hold: pass schema= without it"
            )
    if {name for name, *_ in columns} <= names:
        return
    folded: dict[str, str] = {}
    for name in sorted(names):
        twin = folded.setdefault(name.casefold(), name)
        if twin != name:
            raise differ_by_case(twin, name)


def _why_no_columns(names: frozenset[str]) -> str:
    if not names:
        return "the objects in the files have no fields, so no schema can be inferred: pass schema="
    if "" in names:
        return "a field in the files has an empty name: pass schema= without it"
    return (
        f"each line has few of the {len(names):,} fields in the files, so the names look like "
        "data, not like columns: pass schema= with the columns that matter"
    )


def _is_mixed(kind: str) -> bool:
    """Return True if a column has values of several types, or a map in place of fields."""
    return _MIXED.search(_QUOTED.sub("", kind)) is not None


def _has_null(dtype: pa.DataType) -> bool:
    """Return True if a type has the null type within it: the sample has no value there."""
    if not pa.types.is_nested(dtype):
        return pa.types.is_null(dtype)
    return any(_has_null(dtype.field(place).type) for place in range(dtype.num_fields))


def _plain(kind: str) -> str:
    """Return the column type for a DuckDB type; types that tidelog lacks become text."""
    if _is_mixed(kind) or kind in ("UUID", '"NULL"', "NULL"):
        return "VARCHAR"
    return "DECIMAL(38, 0)" if kind in ("HUGEINT", "UHUGEINT") else kind


def _settled(schema: pa.Schema, sample: bytes) -> pa.Schema:
    """Return the schema with wider types for columns that would refuse values of the sample."""
    for _ in range(2 * len(schema.names)):
        unfit = _unfit(schema, sample)
        if not unfit:
            break
        schema = pa.schema([_wider(field) if field.name in unfit else field for field in schema])
    floats = [field.name for field in schema if pa.types.is_floating(field.type)]
    whole = _whole_numbers(schema, floats, sample)
    return pa.schema([pa.field(f.name, _WHOLE) if f.name in whole else f for f in schema])


def _unfit(schema: pa.Schema, sample: bytes) -> set[str]:
    """Return the columns that would make some line of the sample a bad row."""
    found = decode_json(sample, schema, base=0, counted=False)
    unfit = set(fit(found.table, schema).misfit)
    reasons = {misfit.reason for misfit in found.misfits}
    for field in schema:
        if any(reason.startswith(f"column {field.name!r} does not fit") for reason in reasons):
            unfit.add(field.name)
    return unfit


def _wider(field: pa.Field[Any]) -> pa.Field[Any]:
    if pa.types.is_temporal(field.type) or UNNAMEABLE.search(field.name):
        return pa.field(field.name, pa.string())
    return json_field(field.name)


def _whole_numbers(schema: pa.Schema, names: Sequence[str], sample: bytes) -> set[str]:
    """Return the columns whose numbers are all integers: a double would not be exact for all."""
    texts = pa.schema([json_field(f.name) if f.name in names else f for f in schema])
    if not names or any(UNNAMEABLE.search(name) for name in names):
        return set()
    found = decode_json(sample, texts, base=0, counted=False).table
    columns = [(name, found.column(name).drop_null()) for name in names]
    return {
        name
        for name, column in columns
        if len(column) and pc.all(pc.match_substring_regex(column, _INTEGER)).as_py()
    }


async def typed_remarks(entries: Sequence[Entry], store: Store, *, format: str) -> list[str]:
    """Return a notice for each column that is left out, or is stored in another type.

    Raises:
        UsageError: the first file cannot be read. LocationError: the store failed.
    """
    columns = await _typed_columns(entries, store, format)
    missing = [f.name for f in columns if _has_null(f.type)]
    changed: list[str] = []
    if format == "parquet":
        changed = changed_types(await _parquet_metadata(entries[0], store))
    elif entries:
        changed = changed_avro_types(await _avro_schema_of(entries[0], store))
    return [
        *changed,
        *(
            f"column {name!r} or a field of it has no value in the first files, so it has no type "
            "and is left out: pass --schema to have it"
            for name in missing
        ),
    ]


def columns_of_messages(avro_schema: str) -> pa.Schema:
    """Return the columns of messages of a schema of avro, without fields of the type null.

    Raises:
        UsageError: the schema cannot be read, or has no columns.
    """
    try:
        columns = parse_avro_schema(avro_schema).columns
    except CorruptionError as error:
        raise UsageError(f"avro_schema= cannot be used: {error.sentence}") from error
    found = [(f, _without_nulls(f.type)) for f in map(_storable, columns)]
    typed = [field.with_type(dtype) for field, dtype in found if dtype is not None]
    if not typed:
        raise UsageError("avro_schema= has only fields of nulls: pass schema='name type, ...'")
    return pa.schema(typed)


async def _typed_schema(entries: Sequence[Entry], store: Store, format: str) -> pa.Schema:
    """Return the columns of the first file, without those that have no type in the first files."""
    columns = await _typed_columns(entries, store, format)
    found = [(f, _without_nulls(f.type)) for f in columns]
    typed = [field.with_type(dtype) for field, dtype in found if dtype is not None]
    if not typed:
        raise UsageError(
            f"no column of {entries[0].key!r} has a value, so none has a type: pass "
            "schema='name type, ...'"
        )
    return pa.schema(typed)


async def _typed_columns(entries: Sequence[Entry], store: Store, format: str) -> pa.Schema:
    """Return the columns of the first file, with types from later files for those without one."""
    schema = await _columns_in(entries[0], store, format)
    for entry in entries[1:FILES_MAX]:
        if not any(_has_null(field.type) for field in schema):
            break
        with suppress(UsageError):  # Ingestion reports the file.
            other = await _columns_in(entry, store, format)
            typed = {f.name: f for f in other if not _has_null(f.type)}
            schema = pa.schema([typed.get(f.name, f) if _has_null(f.type) else f for f in schema])
    return schema


async def _columns_in(entry: Entry, store: Store, format: str) -> pa.Schema:
    if format == AVRO_FORMAT:
        avro = await _avro_schema_of(entry, store)
        return pa.schema(map(_storable, avro.columns))
    return pa.schema(
        map(_storable, (await _parquet_metadata(entry, store)).schema.to_arrow_schema())
    )


def _storable(field: pa.Field[Any]) -> pa.Field[Any]:
    dtype = canonical_type(without_maps(plain_type(field.type)))
    return pa.field(field.name, dtype, metadata=field.metadata if is_json(field) else None)


async def _avro_schema_of(entry: Entry, store: Store) -> AvroSchema:
    file = OpenedFile(store=store, path=entry.key)
    try:
        header, _ = await read_avro_header(file, entry.size_bytes)
        return header.schema
    except CorruptionError as error:
        raise UsageError(
            f"{entry.key!r} cannot be read as avro: {error.sentence}; correct the file, or format="
        ) from error


def _without_nulls(dtype: pa.DataType) -> pa.DataType | None:
    """Return a type without the fields of the type null; None if nothing is left."""
    if pa.types.is_null(dtype):
        return None
    if pa.types.is_struct(dtype):
        found = [(field, _without_nulls(field.type)) for field in dtype]
        fields = [field.with_type(inner) for field, inner in found if inner is not None]
        return pa.struct(fields) if fields or not found else None
    if pa.types.is_list(dtype):
        inner = _without_nulls(dtype.value_type)
        return None if inner is None else pa.list_(inner)
    return dtype


async def _parquet_metadata(entry: Entry, store: Store) -> pq.FileMetaData:
    try:
        tail = (await store.get(entry.key, start=max(0, entry.size_bytes - 8))).data
        start = entry.size_bytes - footer_bytes(tail)
        if start < 0:
            raise CorruptionError("the footer of a parquet file is longer than the file")
        return read_footer((await store.get(entry.key, start=start)).data)
    except CorruptionError as error:
        raise UsageError(
            f"{entry.key!r} cannot be read as parquet: {error.sentence}; correct the file, or "
            "format="
        ) from error
