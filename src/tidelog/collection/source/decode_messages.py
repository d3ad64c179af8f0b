"""Decoding of messages: from rows of a kind of source, or bytes of a file, to good rows. Pure.

The bodies of messages are decoded like the lines of a file. Columns of the kind, such as the key
and the time of a message, can come next to the fields of its body. A message without a body can
delete its key: it is a tombstone.
Shape: rows have the schema's columns and ``_offset``, the address of each; see `source.decode`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA, SourceInfo
from tidelog.collection.formats.avro.container import AVRO_FORMAT
from tidelog.collection.formats.avro.messages import (
    MessageSchemas,
    decode_messages_of_avro,
    shown_bytes,
)
from tidelog.collection.formats.lines import CsvDialect, Int64s
from tidelog.collection.formats.records import (
    OFFSET,
    Misfit,
    Records,
    Texts,
    listed,
    row_texts,
    shown,
    texts_of,
)
from tidelog.collection.formats.text import BYTES_FORMAT, decode_bytes
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.collection.source.decode import (
    COMMAS,
    LARGE,
    ROW_BYTES_MAX,
    DecodedRows,
    decode_range,
    errors_table,
    fit_records,
)
from tidelog.collection.source.kind import BODY, ROWS, has_tombstones
from tidelog.persist.format.part import large_rows
from tidelog.persist.format.schema import OWN_PREFIX

# The columns of these kinds are fixed and known. If a source lacks one, the user left it out on
# purpose, so its values are not counted as dropped.
OWN: Final = ("generator", "kafka", "log", "collection")
TOMBSTONE: Final = OWN_PREFIX + "tombstone"  # True in a row that deletes its key.
_BREAK: Final = re.compile(rb'"(?:[^"\\\r\n]|\\[^\r\n])*"|[\r\n]|"')
_NO_SCHEMAS: Final = MessageSchemas()
_NO_COLUMNS: Final[Mapping[str, str]] = MappingProxyType({})


def decode_messages(
    rows: pa.Table,
    found: AddressRange,
    wanted: pa.Schema,
    *,
    source: SourceInfo,
    required: Sequence[str] = (),
    counted: bool = True,
) -> DecodedRows:
    """Return the rows of a range of a source that reads no files."""
    return decode_rows(
        rows,
        found,
        wanted,
        format=source.format,
        dialect=source.csv,
        schemas=MessageSchemas(source.avro_schema or None),
        required=required,
        counted=counted and not (source.kind in OWN and source.format == ROWS),
        include=source.includes,
        are_tombstones=has_tombstones(source.envelope, source.key, source.includes),
    )


def decode_rows(
    rows: pa.Table,
    found: AddressRange,
    wanted: pa.Schema,
    *,
    format: str,
    dialect: CsvDialect = COMMAS,
    schemas: MessageSchemas = _NO_SCHEMAS,
    required: Sequence[str] = (),
    counted: bool = True,
    include: Mapping[str, str] = _NO_COLUMNS,
    are_tombstones: bool = False,
) -> DecodedRows:
    """Decode the rows of a range; see `decode_range`.

    Shape: ``include`` has the names of columns of ``rows`` that the result has, too, by the names
        that they get. With ``are_tombstones``, a row without a body is good and has nulls in the
        columns of the body; the result then has `TOMBSTONE`. Bodies of avro have the ``schemas``.
    """
    if format != ROWS:
        own = pa.schema([one for one in wanted if one.name not in include])
        needed = [name for name in required if name not in include]
        decode = partial(
            decode_range,
            wanted=own,
            format=format,
            dialect=dialect,
            required=needed,
            counted=counted,
        )
        bodies = partial(_decode_bodies, path=found.path, format=format, decode=decode)
        if format == AVRO_FORMAT:
            folds_case = dialect.folds_case
            decoder = partial(
                decode_messages_of_avro, wanted=own, schemas=schemas, folds_case=folds_case
            )
            bodies = partial(
                _decode_avro, path=found.path, decode=decoder, wanted=own, required=needed
            )
        if format == BYTES_FORMAT:
            bodies = partial(_keep_bytes, path=found.path, wanted=own, required=needed)
        if not include:
            return bodies(rows)
        deletes = np.zeros(rows.num_rows, dtype=np.bool_)
        if are_tombstones:
            deletes = ~np.asarray(rows.column(BODY).is_valid().to_numpy(), dtype=np.bool_)
        decoded = bodies(rows.filter(pa.array(~deletes)))
        show = shown_bytes if format == AVRO_FORMAT else shown
        beside = _fit_included(rows, found.path, wanted, include, required, show=show)
        joined = join_included(decoded, beside, wanted, path=found.path)
        return joined if are_tombstones else replace(joined, rows=joined.rows.drop([TOMBSTONE]))
    missing = [name for name in wanted.names if name not in rows.column_names]
    for name in missing:
        nothing: Any = pa.nulls(rows.num_rows)
        rows = rows.append_column(name, nothing)
    addresses = rows.column(OFFSET).to_numpy()
    data = rows.select(wanted.names)
    dropped: dict[str, int] = {}
    if counted:
        others = (name for name in rows.column_names if name not in {OFFSET, *wanted.names})
        values = {name: rows.num_rows - rows.column(name).null_count for name in others}
        dropped = {name: count for name, count in values.items() if count}
    records = Records(data, addresses, lambda some: row_texts(data.take(some)), dropped=dropped)
    return fit_records(records, found.path, wanted, required=required)


def _decode_bodies(
    rows: pa.Table, path: str, format: str, decode: Callable[[bytes, FileRange], DecodedRows]
) -> DecodedRows:
    bodies = rows.column(BODY).cast(pa.binary()).to_pylist()
    lines = record_lines(bodies, format)
    addresses = rows.column(OFFSET).to_numpy()
    misfits = [
        Misfit(address, _no_record(body, format), shown(body or b""))
        for address, body, line in zip(addresses.tolist(), bodies, lines, strict=True)
        if line is None
    ]
    return _decode_records(lines, addresses, misfits, path, decode)


def _keep_bytes(
    rows: pa.Table, *, path: str, wanted: pa.Schema, required: Sequence[str]
) -> DecodedRows:
    bodies = rows.column(BODY).cast(pa.binary()).to_pylist()
    records = decode_bytes(bodies, rows.column(OFFSET).to_numpy(), wanted)
    return fit_records(records, path, wanted, required=required)


def _decode_avro(
    rows: pa.Table,
    *,
    path: str,
    decode: Callable[[Sequence[bytes | None], Int64s], Sequence[Records]],
    wanted: pa.Schema,
    required: Sequence[str],
) -> DecodedRows:
    """Decode messages of avro. The addresses of those of several schemas may alternate."""
    bodies = rows.column(BODY).cast(pa.binary()).to_pylist()
    found = decode(bodies, rows.column(OFFSET).to_numpy())
    parts = [fit_records(one, path, wanted, required=required) for one in found]
    if len(parts) == 1:
        return parts[0]
    dropped: Counter[str] = Counter()
    for one in parts:
        dropped.update(one.dropped)

    def texts(offsets: Int64s) -> Texts:
        told: dict[int, str] = {}
        for one in parts:
            own = offsets[np.isin(offsets, one.rows.column(OFFSET).to_numpy())]
            told.update(zip(own.tolist(), listed(one.texts(own)), strict=True))
        return texts_of([told[offset] for offset in offsets.tolist()])

    return DecodedRows(
        pa.concat_tables([one.rows for one in parts]).sort_by(OFFSET),
        pa.concat_tables([one.errors for one in parts]).sort_by("offset"),
        dict(dropped),
        texts,
    )


def _fit_included(
    rows: pa.Table,
    path: str,
    wanted: pa.Schema,
    include: Mapping[str, str],
    required: Sequence[str],
    *,
    show: Callable[[bytes], str],
) -> DecodedRows:
    """Return the columns that come with the bodies, converted to the wanted types."""
    own = pa.schema([one for one in wanted if one.name in include])
    bodies = rows.column(BODY).cast(pa.binary())
    columns = [rows.column(include[name]) for name in own.names]
    records = Records(
        pa.table(columns, names=own.names),
        rows.column(OFFSET).to_numpy(),
        lambda some: texts_of([show(body or b"") for body in bodies.take(some).to_pylist()]),
    )
    return fit_records(records, path, own, required=[n for n in required if n in own.names])


def join_included(
    decoded: DecodedRows, beside: DecodedRows, wanted: pa.Schema, *, path: str
) -> DecodedRows:
    """Return the decoded bodies with the columns beside them, joined by their addresses.

    A row is bad if either part of it is. A row whose body was not decoded, and is not bad either,
    has nulls in the columns of the body.
    Shape: the rows have the column `TOMBSTONE`: True in rows without a body.
    """
    at_body, at = (one.rows.column(OFFSET).to_numpy() for one in (decoded, beside))
    bad_bodies = decoded.errors.column("offset").to_numpy()
    rows = beside.rows.filter(pa.array(~np.isin(at, bad_bodies)))
    at = rows.column(OFFSET).to_numpy()
    places = np.searchsorted(at_body, at)
    lacks = ~np.isin(at, at_body)
    places_of: Any = pa.array(places, mask=lacks)
    taken = decoded.rows.take(places_of)
    columns = [(rows if n in rows.column_names else taken).column(n) for n in wanted.names]
    joined = pa.table([*columns, rows.column(OFFSET)], names=[*wanted.names, OFFSET])
    joined = joined.append_column(TOMBSTONE, pa.array(lacks))
    both_bad = np.isin(beside.errors.column("offset").to_numpy(), bad_bodies)
    errors = [decoded.errors, beside.errors.filter(pa.array(~both_bad))]
    large = large_rows(joined, ROW_BYTES_MAX)
    if large:  # Each of the two parts is small enough.
        errors.append(errors_table(path, [Misfit(int(at[row]), LARGE, "") for row in large]))
        joined = joined.filter(pa.array(~np.isin(np.arange(len(at)), large)))
    found = pa.concat_tables(errors).sort_by("offset").cast(ERRORS_SCHEMA.data)
    return DecodedRows(joined, found, decoded.dropped, beside.texts)


def _no_record(body: bytes | None, format: str) -> str:
    if not (body or b"").strip():
        return "the record is empty"
    return "the record is not one json value" if format == "json" else "the record is not one line"


def _decode_records(
    records: Sequence[bytes | None],
    addresses: Int64s,
    misfits: Sequence[Misfit],
    path: str,
    decode: Callable[[bytes, FileRange], DecodedRows],
) -> DecodedRows:
    """Decode records as the lines of a file; those that are None are in ``misfits``."""
    lines = [record or b"" for record in records]
    sizes = np.fromiter((len(line) + 1 for line in lines), np.int64, len(lines))
    # Begin at offset 1: at 0, the decoder would look for the mark of a file's beginning.
    starts = 1 + np.cumsum(sizes) - sizes
    data = b"".join(line + b"\n" for line in lines)
    done = decode(data, FileRange(path=path, start=1, limit=1 + len(data)))
    good, bad = (
        _with_addresses(table, name, starts, addresses)
        for table, name in ((done.rows, OFFSET), (done.errors, "offset"))
    )
    errors = pa.concat_tables([bad, errors_table(path, misfits)])
    return DecodedRows(
        good,
        errors.sort_by("offset").cast(ERRORS_SCHEMA.data),
        done.dropped,
        lambda some: texts_of(
            [shown(lines[row]) for row in np.searchsorted(addresses, some).tolist()]
        ),
    )


def _with_addresses(table: pa.Table, name: str, starts: Int64s, addresses: Int64s) -> pa.Table:
    """Return a table with the offsets of lines replaced by the addresses of their records."""
    places = table.column(name).to_numpy()
    rows = np.searchsorted(starts, places, side="right") - 1
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(addresses[rows], pa.int64()))


def record_lines(bodies: Iterable[bytes | None], format: str) -> list[bytes | None]:
    """Return each record of json or csv as a line without its end; None if it is not one line."""
    line_of = one_line if format == "json" else csv_line
    return [None if body is None else line_of(body) for body in bodies]


def csv_line(body: bytes) -> bytes | None:
    """Return a csv record without its line end; None if it is empty or has more than one line."""
    line = body.removesuffix(b"\n").removesuffix(b"\r")
    return None if not line.strip() or b"\n" in line or b"\r" in line else line


def one_line(body: bytes) -> bytes | None:
    """Return json as one line; None if it is empty or has a line break within a string."""
    body = body.strip()
    if not body:
        return None
    if b"\n" not in body and b"\r" not in body:
        return body
    torn: list[bool] = []

    def flat(found: re.Match[bytes]) -> bytes:
        text = found.group()
        torn.extend([True] * (text == b'"'))
        return b" " if text in (b"\n", b"\r") else text

    line = _BREAK.sub(flat, body)
    return None if torn else line
