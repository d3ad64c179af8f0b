"""Decoding: from the data of a range to good rows, and to errors for the bad ones. Pure.

Files have bytes. Other kinds of sources have rows: columns, which are converted like those of
parquet, or one column of text, which is decoded like lines of a file.

The result for a record depends only on that record, never on its neighbours. So it does not matter
how tasks split a range. A whole range is parsed at once, for speed. If a library fails on it, the
records are tried in parts, and only the record that makes it fail is bad.
Shape: rows have the schema's columns and ``_offset`` (int64: the byte offset of the record in its
    file, or the row number in a parquet file; for avro, see `container.ROW_BITS`). Errors have the
    columns of `catalog.ERRORS_SCHEMA`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA, SourceInfo
from tidelog.collection.formats.avro.container import AVRO_FORMAT
from tidelog.collection.formats.avro.decode import decode_avro, split_blocks
from tidelog.collection.formats.casts import Formats, fit
from tidelog.collection.formats.csv.decode import decode_csv
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT, array_lines
from tidelog.collection.formats.json.decode import decode_json
from tidelog.collection.formats.lines import CsvDialect, Int64s, record_ends, split_at, white_of
from tidelog.collection.formats.parquet import PackedGroups, decode_parquet, split_groups
from tidelog.collection.formats.records import (
    OFFSET,
    Misfit,
    Records,
    Texts,
    do_without_bad_rows,
    listed,
    shown,
    texts_of,
)
from tidelog.collection.formats.text import TEXT_FORMAT, decode_text
from tidelog.collection.formats.types import sql_type_of
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.errors import CorruptionError, InvariantError, TidelogError
from tidelog.persist.format.part import large_rows
from tidelog.persist.format.schema import ShardSchema

# The data of a range, as a source reads them.
ReadData: TypeAlias = "bytes | pa.Table | DecodedRows"


def required_columns(source: SourceInfo, schema: ShardSchema) -> list[str]:
    """Return the columns in which a null makes a row bad: the key, and the time."""
    key = schema.key if source.envelope == "upsert" else []
    time = [] if source.time_column is None else [source.time_column]
    return list(dict.fromkeys([*key, *time]))


def decode_file(
    data: ReadData,
    found: AddressRange,
    wanted: pa.Schema,
    *,
    source: SourceInfo,
    required: Sequence[str] = (),
    counted: bool = True,
) -> DecodedRows:
    """Return the rows of a range of a file; data that are decoded already are unchanged."""
    if isinstance(data, DecodedRows):
        return data
    if not isinstance(data, bytes) or not isinstance(found, FileRange):
        raise InvariantError("bytes were read for a range that is not of a file", path=found.path)
    return decode_range(
        data,
        found,
        wanted,
        format=source.format,
        dialect=source.csv,
        required=required,
        counted=counted,
    )


# Less than the maximum of a shard, which also stores a row's time and a null bit for each value.
ROW_BYTES_MAX: Final = 8_000_000
LARGE: Final = "the row has over 8 MB: store large values elsewhere, and ingest references to them"
COMMAS: Final = CsvDialect()
_ISO: Final = Formats()


class TextsNotKept(Exception):
    """The text of bad rows is not in memory, so the caller must read and decode them again."""


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The good rows of a range, its bad ones, and counts of fields that the schema lacks.

    ``texts`` returns the text of the rows at some offsets, for rows that a later step finds to be
    bad. It raises `TextsNotKept` for rows that come from a cache without their text.
    """

    rows: pa.Table
    errors: pa.Table
    dropped: Mapping[str, int] = field(default_factory=dict)
    texts: Callable[[Int64s], Texts] = lambda offsets: texts_of([""] * len(offsets))


def decode_range(
    data: bytes,
    found: FileRange,
    wanted: pa.Schema,
    *,
    format: str,
    dialect: CsvDialect = COMMAS,
    required: Sequence[str] = (),
    counted: bool = True,
) -> DecodedRows:
    """Decode the bytes of a range. A row in which a ``required`` column is null is bad.

    With ``counted`` False, fields that ``wanted`` lacks are not counted if counting takes time.
    """
    if format == ARRAY_FORMAT and found.header:
        data = array_lines(data, inside=found.start > 0)
        found = msgspec.structs.replace(found, header=b"")
    decode = partial(
        _decode, wanted=wanted, format=format, dialect=dialect, required=required, counted=counted
    )
    nothing = wanted.append(pa.field(OFFSET, pa.int64())).empty_table()
    try:
        return decode(data, found)
    except CorruptionError as error:
        # The range was bound without a read. Its bytes never change, so the error is permanent: it
        # becomes a bad row.
        return DecodedRows(nothing, _unreadable(found, error.sentence))
    except (TidelogError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - a file that makes a library fail has bad rows
        if format == "parquet":
            groups = split_groups(data, found.start, found.limit)
            return _decode_groups_apart(groups, "row group", found, decode, nothing)
        if format == AVRO_FORMAT:
            groups = split_blocks(data, found.start)
            return _decode_groups_apart(groups, "block", found, decode, nothing)
        apart = _decode_apart(data, found, dialect if format == "csv" else None, decode)
        return replace(apart, rows=apart.rows if apart.rows.num_columns else nothing)


def _decode_apart(
    data: bytes,
    found: FileRange,
    dialect: CsvDialect | None,
    decode: Callable[[bytes, FileRange], DecodedRows],
) -> DecodedRows:
    """Decode text in parts, because some record makes a library fail."""
    head = len(found.header) if found.start == 0 else 0
    starts, ends = split_at(data, record_ends(data, dialect), start=head, white=white_of(dialect))

    def some(start: int, limit: int) -> DecodedRows:
        low = int(starts[start]) if start else 0
        high = int(ends[limit - 1]) if limit else head
        at = found.start + low
        return decode(
            data[low:high], msgspec.structs.replace(found, start=at, limit=found.start + high)
        )

    done, failed = do_without_bad_rows(len(starts), some)
    misfits = [
        Misfit(found.start + int(starts[row]), _failure(name), shown(data[starts[row] : ends[row]]))
        for row, name in failed.items()
    ]
    dropped: Counter[str] = Counter()
    for one in done:
        dropped.update(one.dropped)
    return DecodedRows(
        pa.concat_tables([one.rows for one in done]) if done else pa.table({}),
        pa.concat_tables([*(one.errors for one in done), errors_table(found.path, misfits)]),
        dict(dropped),
        lambda offsets: texts_of(
            [
                shown(data[starts[row] : ends[row]])
                for row in np.searchsorted(starts, offsets - found.start).tolist()
            ]
        ),
    )


def _decode_groups_apart(
    groups: Sequence[PackedGroups],
    what: str,
    found: FileRange,
    decode: Callable[[bytes, FileRange], DecodedRows],
    nothing: pa.Table,
) -> DecodedRows:
    """Decode row groups, or blocks, one by one. Each that makes a library fail is one bad row."""

    def some(start: int, limit: int) -> list[tuple[PackedGroups, DecodedRows]]:
        ranges = [msgspec.structs.replace(found, start=g.low, limit=g.high) for g in groups]
        return [(groups[at], decode(groups[at].data, ranges[at])) for at in range(start, limit)]

    parts, failed = do_without_bad_rows(len(groups), some)
    misfits = [
        Misfit(
            groups[at].row,
            f"the {what} cannot be decoded: {name}",
            f"{groups[at].rows} rows from this one",
        )
        for at, name in failed.items()
    ]
    done = [pair for part in parts for pair in part]
    dropped: Counter[str] = Counter()
    for _, one in done:
        dropped.update(one.dropped)

    def texts(offsets: Int64s) -> Texts:
        told: dict[int, str] = {}
        for group, one in done:
            within = offsets[group.holds(offsets)]
            told.update(zip(within.tolist(), listed(one.texts(within)), strict=True))
        return texts_of([told[offset] for offset in offsets.tolist()])

    return DecodedRows(
        pa.concat_tables([nothing, *(one.rows for _, one in done)]),
        pa.concat_tables(
            [*(one.errors for _, one in done), errors_table(found.path, misfits)]
        ).sort_by("offset"),
        dict(dropped),
        texts,
    )


def _unreadable(found: FileRange, why: str) -> pa.Table:
    """Return one bad row for a file that cannot be read; only its first range has it."""
    return errors_table(found.path, [Misfit(0, why, "")] if found.start == 0 else [])


def _failure(name: str) -> str:
    return f"the record cannot be decoded: {name}"


def _decode(
    data: bytes,
    found: FileRange,
    *,
    wanted: pa.Schema,
    format: str,
    dialect: CsvDialect,
    required: Sequence[str],
    counted: bool,
) -> DecodedRows:
    if format in ("json", ARRAY_FORMAT):
        records = decode_json(
            data, wanted, base=found.start, counted=counted, folds_case=dialect.folds_case
        )
    elif format == "csv":
        records = decode_csv(data, wanted, base=found.start, header=found.header, dialect=dialect)
    elif format == TEXT_FORMAT:
        records = decode_text(data, wanted, base=found.start)
    elif format == "parquet":
        records = decode_parquet(
            data, wanted, low=found.start, high=found.limit, folds_case=dialect.folds_case
        )
    elif format == AVRO_FORMAT:
        records = decode_avro(data, wanted, base=found.start, folds_case=dialect.folds_case)
    else:
        raise InvariantError("a format that was checked at creation is unknown", format=format)
    formats = _ISO
    if format == "csv":
        formats = Formats(dialect.date_format, dialect.timestamp_format, dialect.is_inferred)
    return fit_records(records, found.path, wanted, required=required, formats=formats)


def fit_records(
    records: Records,
    path: str,
    wanted: pa.Schema,
    *,
    required: Sequence[str],
    formats: Formats = _ISO,
) -> DecodedRows:
    """Return the parsed records that fit the wanted types, converted, and errors for the others."""
    table, places, faults = _fit(records.table.select(wanted.names), wanted, formats)
    offsets = records.offsets
    faults.add(places[large_rows(table, ROW_BYTES_MAX)], LARGE)
    for name in required:
        lacks = ~np.asarray(table.column(name).is_valid().to_numpy(), dtype=np.bool_)
        missing = places[lacks]
        faults.add(missing[faults.codes[missing] < 0], f"column {name!r} is null")
    bad = np.flatnonzero(faults.codes >= 0)
    errors = errors_table(path, records.misfits)
    rows = table.append_column(OFFSET, pa.array(offsets[places], pa.int64()))
    if len(bad):
        own = _errors(path, offsets[bad], faults.reasons_of(bad), records.texts(bad))
        errors = _in_order(pa.concat_tables([errors, own])) if errors.num_rows else own
        rows = rows.filter(pa.array(faults.codes[places] < 0))
    return DecodedRows(
        rows,
        errors,
        records.dropped,
        lambda some: records.texts(np.searchsorted(offsets, some)),
    )


@dataclass(frozen=True, slots=True)
class _Faults:
    """The fault of each row, as an index into the distinct reasons; -1 for a good row."""

    codes: Int64s
    reasons: list[str] = field(default_factory=list)

    def add(self, rows: Int64s, reason: str) -> None:
        """Set the fault of some rows."""
        if len(rows):
            self.codes[rows] = len(self.reasons)
            self.reasons.append(reason)

    def reasons_of(self, rows: Int64s) -> pa.Array[Any]:
        return pa.array(self.reasons, pa.string()).take(self.codes[rows])


def _fit(table: pa.Table, wanted: pa.Schema, formats: Formats) -> tuple[pa.Table, Int64s, _Faults]:
    """Return a table of the wanted types, its rows' places in ``table``, and the rows' faults."""
    done, failed = do_without_bad_rows(
        table.num_rows,
        lambda start, limit: (start, fit(table.slice(start, limit - start), wanted, formats)),
    )
    faults = _Faults(np.full(table.num_rows, -1, np.int64))
    for row, name in failed.items():
        faults.add(np.array([row]), _failure(name))
    for start, fitted in done:
        for name, rows in fitted.misfit.items():
            kind = sql_type_of(wanted.field(name))
            faults.add(start + rows, f"column {name!r} does not fit its type {kind}")
    places = [np.arange(start, start + one.table.num_rows) for start, one in done]
    tables = [one.table for _, one in done] or [wanted.empty_table()]
    nothing = np.zeros(0, dtype=np.int64)
    return pa.concat_tables(tables), np.concatenate([nothing, *places]), faults


def errors_table(path: str, misfits: Sequence[Misfit]) -> pa.Table:
    """Return bad records as rows of the errors shard, sorted by offset, with their texts cut."""
    ordered = sorted(misfits, key=lambda m: m.offset)
    return _errors(
        path,
        np.array([m.offset for m in ordered], np.int64),
        pa.array([m.reason for m in ordered], pa.string()),
        texts_of([m.text for m in ordered]),
    )


def _errors(path: str, offsets: Int64s, reasons: pa.Array[Any], texts: Texts) -> pa.Table:
    paths = pa.array([path], pa.string()).take(np.zeros(len(offsets), np.int64))
    return pa.table([paths, offsets, reasons, texts], schema=ERRORS_SCHEMA.data)


def _in_order(errors: pa.Table) -> pa.Table:
    """Return bad records sorted by offset; those with the same offset keep their order."""
    order = np.argsort(errors.column("offset").to_numpy(), kind="stable")
    return errors.take(order)
