"""Decoding: from the bytes of a range to good rows, and to what is wrong with the others. Pure.

What becomes of a record depends on that record alone, never on its neighbours: a whole range is
parsed at once, and only where that fails is it halved until each bad record stands alone.
Shape: rows have the schema's columns and ``_offset`` (int64: byte offset of the record in its
    file, or row number in a parquet file); errors are as `catalog.ERRORS_SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.collection.binding import SourceRange
from tidelog.collection.casts import fit
from tidelog.collection.catalog import ERRORS_SCHEMA
from tidelog.collection.decode_csv import decode_csv
from tidelog.collection.decode_json import decode_json
from tidelog.collection.decode_parquet import decode_parquet
from tidelog.collection.dialect import CsvDialect
from tidelog.collection.records import OFFSET, Misfit, Records
from tidelog.errors import InvariantError

TEXT_MAX: Final = 4_096
_COMMAS: Final = CsvDialect()


@dataclass(frozen=True, slots=True)
class Decoded:
    """The good rows of a range, its bad ones, and counts of fields that the schema lacks."""

    rows: pa.Table
    errors: pa.Table
    dropped: Mapping[str, int] = field(default_factory=dict)


def decode_range(
    data: bytes,
    found: SourceRange,
    wanted: pa.Schema,
    *,
    format: str,
    dialect: CsvDialect = _COMMAS,
    required: Sequence[str] = (),
    counted: bool = True,
) -> Decoded:
    """Decode the bytes of a range. A row in which a ``required`` column is null is bad.

    ``counted`` False spares counting the fields that ``wanted`` lacks, where that takes time.
    """
    records = _parse(data, found, wanted, format=format, dialect=dialect, counted=counted)
    fitted = fit(records.table.select(wanted.names), wanted)
    offsets = records.offsets
    reasons = {row: f"column {name!r} does not fit its type" for row, name in fitted.misfit.items()}
    good = fitted.fits.copy()
    for name in required:
        there = np.asarray(fitted.table.column(name).is_valid().to_numpy(), dtype=np.bool_)
        for row in np.flatnonzero(good & ~there).tolist():
            reasons[row] = f"column {name!r} is null"
        good &= there
    texts = records.texts(np.fromiter(reasons, np.int64, len(reasons))) if reasons else []
    misfits = [
        *records.misfits,
        *(
            Misfit(int(offsets[row]), why, text)
            for (row, why), text in zip(reasons.items(), texts, strict=True)
        ),
    ]
    rows = fitted.table.append_column(OFFSET, pa.array(offsets, pa.int64()))
    if reasons:
        rows = rows.filter(pa.array(good))
    return Decoded(rows, errors_table(found.path, misfits), records.dropped)


def _parse(
    data: bytes,
    found: SourceRange,
    wanted: pa.Schema,
    *,
    format: str,
    dialect: CsvDialect,
    counted: bool,
) -> Records:
    if format == "json":
        return decode_json(data, wanted, base=found.start, counted=counted)
    if format == "csv":
        return decode_csv(data, wanted, base=found.start, header=found.header, dialect=dialect)
    if format == "parquet":
        return decode_parquet(data, wanted, start=found.start, limit=found.limit)
    raise InvariantError("a format that was checked at creation is unknown", format=format)


def errors_table(path: str, misfits: Sequence[Misfit]) -> pa.Table:
    """Return bad records as rows of the errors shard; their text is cut at 4,096 characters."""
    ordered = sorted(misfits, key=lambda m: m.offset)
    return pa.table(
        {
            "file": [path] * len(ordered),
            "offset": [m.offset for m in ordered],
            "reason": [m.reason for m in ordered],
            "text": [m.text[:TEXT_MAX] for m in ordered],
        },
        schema=ERRORS_SCHEMA.data,
    )
