"""Decoding: from the bytes of a range to good rows, and to errors for the bad ones. Pure.

The result for a record depends only on that record, never on its neighbours. So it does not matter
how tasks split a range. A whole range is parsed at once, for speed. If a library fails on it, the
records are tried in parts, and only the record that makes it fail is bad.
Shape: rows have the schema's columns and ``_offset`` (int64: the byte offset of the record in its
    file, or the row number in a parquet file). Errors have the columns of `catalog.ERRORS_SCHEMA`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.formats.bad_rows import do_without_bad_rows
from tidelog.collection.formats.casts import Formats, fit
from tidelog.collection.formats.csv.decode import decode_csv
from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT, array_lines
from tidelog.collection.formats.json.decode import decode_json
from tidelog.collection.formats.lines import record_ends, split_at, white_of
from tidelog.collection.formats.parquet import PackedGroups, decode_parquet, split_groups
from tidelog.collection.formats.places import Int64s
from tidelog.collection.formats.records import OFFSET, Misfit, Records, shown
from tidelog.collection.formats.row_texts import Texts, listed, texts_of
from tidelog.collection.source.binding import FileRange
from tidelog.errors import CorruptionError, InvariantError, TidelogError
from tidelog.persist.format.part import large_rows

# Less than the maximum of a shard, which also stores a row's time and a null bit for each value.
ROW_BYTES_MAX: Final = 8_000_000
_LARGE: Final = "the row has over 8 MB: store large values elsewhere, and ingest references to them"
_COMMAS: Final = CsvDialect()
_ISO: Final = Formats()


class TextsNotKept(Exception):
    """The text of bad rows is not in memory, so the caller must read and decode them again."""


@dataclass(frozen=True, slots=True)
class Decoded:
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
    dialect: CsvDialect = _COMMAS,
    required: Sequence[str] = (),
    counted: bool = True,
) -> Decoded:
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
        return Decoded(nothing, _unreadable(found, error.sentence))
    except (TidelogError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - a file that makes a library fail has bad rows
        if format == "parquet":
            return _decode_groups_apart(data, found, decode, nothing)
        apart = _decode_apart(data, found, dialect if format == "csv" else None, decode)
        return replace(apart, rows=apart.rows if apart.rows.num_columns else nothing)


def _decode_apart(
    data: bytes,
    found: FileRange,
    dialect: CsvDialect | None,
    decode: Callable[[bytes, FileRange], Decoded],
) -> Decoded:
    """Decode text in parts, because some record makes a library fail."""
    head = len(found.header) if found.start == 0 else 0
    starts, ends = split_at(data, record_ends(data, dialect), start=head, white=white_of(dialect))

    def some(start: int, limit: int) -> Decoded:
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
    return Decoded(
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
    data: bytes, found: FileRange, decode: Callable[[bytes, FileRange], Decoded], nothing: pa.Table
) -> Decoded:
    """Decode row groups one by one. Each group that makes a library fail becomes one bad row."""
    groups = split_groups(data, found.start, found.limit)

    def some(start: int, limit: int) -> list[tuple[PackedGroups, Decoded]]:
        ranges = [msgspec.structs.replace(found, start=g.low, limit=g.high) for g in groups]
        return [(groups[at], decode(groups[at].data, ranges[at])) for at in range(start, limit)]

    parts, failed = do_without_bad_rows(len(groups), some)
    misfits = [
        Misfit(
            groups[at].row,
            f"the row group cannot be decoded: {name}",
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

    return Decoded(
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
) -> Decoded:
    if format in ("json", ARRAY_FORMAT):
        records = decode_json(
            data, wanted, base=found.start, counted=counted, folds_case=dialect.folds_case
        )
    elif format == "csv":
        records = decode_csv(data, wanted, base=found.start, header=found.header, dialect=dialect)
    elif format == "parquet":
        records = decode_parquet(
            data, wanted, low=found.start, high=found.limit, folds_case=dialect.folds_case
        )
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
) -> Decoded:
    """Return the parsed records that fit the wanted types, converted, and errors for the others."""
    table, places, faults = _fit(records.table.select(wanted.names), wanted, formats)
    offsets = records.offsets
    faults.add(places[large_rows(table, ROW_BYTES_MAX)], _LARGE)
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
    return Decoded(
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
            faults.add(start + rows, f"column {name!r} does not fit its type")
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
