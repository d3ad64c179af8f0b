"""Chunks: what was read of one file for a plan, in units, and the ranges of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from tidelog.collection.binding import SourceRange
from tidelog.collection.catalog import SourceInfo
from tidelog.collection.decode import decode_range
from tidelog.collection.decode_csv import header_names, header_of
from tidelog.collection.decode_parquet import group_span, pack_range, read_footer
from tidelog.collection.dialect import CsvDialect
from tidelog.collection.lines import record_ends, split_at
from tidelog.collection.places import Int64s
from tidelog.collection.plan import Units
from tidelog.collection.records import OFFSET
from tidelog.collection.times import times_of
from tidelog.errors import HeaderDiffers
from tidelog.store.port import Entry

HEAD_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a file from an address on, and the addresses at which its units end.

    Units: ``start`` and ``limits`` are byte offsets (text) or row groups (parquet).
    """

    entry: Entry
    before: SourceRange | None
    start: int
    limits: Int64s
    data: bytes
    header: bytes = b""
    footer: bytes = b""

    def range_until(self, limit: int, *, late: int) -> tuple[SourceRange, bytes]:
        """Return the range up to one of the limits, and its bytes."""
        if self.footer:
            metadata = read_footer(self.footer)
            first, last = group_span(metadata, self.start, limit)
            data = pack_range(self.footer, self.data[: last - first])
            head = self.footer
        else:
            data = self.data[: limit - self.start]
            head = data[:HEAD_BYTES]
        before = self.before
        return (
            SourceRange(
                path=self.entry.key,
                start=self.start,
                limit=limit,
                sum=xxhash.xxh3_128_digest(data),
                head=before.head if before else xxhash.xxh3_128_digest(head),
                head_bytes=before.head_bytes if before else len(head),
                header=self.header,
                size_bytes=self.entry.size_bytes,
                e_tag=self.entry.e_tag,
                late=late + (before.late if before else 0),
            ),
            data,
        )


def text_chunk(
    entry: Entry,
    before: SourceRange | None,
    data: bytes,
    *,
    source: SourceInfo,
    columns: Sequence[str],
    at_end: bool,
    final: bool,
) -> Chunk | None:
    """Make a chunk of a text file's next bytes; None if not one record of them is whole.

    ``at_end`` says that the file ends with these bytes, ``final`` that its last record is then
    whole though it lacks a line end. ``columns`` are the source's.

    Raises:
        HeaderDiffers: the file's header lacks most of them.
    """
    start = before.limit if before else 0
    dialect = source.dialect
    header = before.header if before else b""
    if dialect is not None and dialect.has_header and start == 0:
        found = header_of(data, dialect)
        if found is None:
            return None
        check_header(found, columns, dialect, path=entry.key)
        header = found
    final = final and at_end
    ends = record_ends(data, dialect, final=final)
    whole = int(ends[-1]) if len(ends) else 0
    if whole < len(data) and (final or (at_end and _stands_alone(data[whole:], source.format))):
        whole = len(data)
    if not whole:
        return None
    data = data[:whole]
    _, limits = split_at(data, ends, start=len(header) if start == 0 else 0)
    # What is blank after the last record goes with it, so that nothing is left to be taken.
    limits = np.append(limits[:-1], whole) if len(limits) else np.array([whole], np.int64)
    return Chunk(entry, before, start, start + limits, data, header)


def check_header(header: bytes, columns: Sequence[str], dialect: CsvDialect, *, path: str) -> None:
    """Check that a file's header has at least half of the columns of its source.

    Raises:
        HeaderDiffers: it has not: most of what the file holds would be lost, told by nobody.
    """
    try:
        names = header_names(header, dialect)
    except ValueError:
        names = []
    missing = [name for name in columns if name not in names]
    if len(missing) * 2 > len(columns):
        raise HeaderDiffers(
            f"the header of the file {path!r} lacks most of the source's columns "
            f"({', '.join(missing[:8])}): correct the file's first line, or move the file away"
        )


def _stands_alone(line: bytes, format: str) -> bool:
    """Say whether a last line without a line end shows that it is whole: json may."""
    try:
        return format == "json" and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def units_of(
    chunk: Chunk, source: SourceInfo, wanted: pa.Schema, *, lower: int, time_max: int
) -> Units:
    """Return the times of a chunk's units, read from the time column alone.

    Those past ``time_max`` are none: such rows are bad, and move nothing.
    """
    count = len(chunk.limits)
    if source.time_column is None:
        return Units.timeless(count)
    until = int(chunk.limits[-1])
    found, data = chunk.range_until(until, late=0)
    column = pa.schema([wanted.field(source.time_column)])
    decoded = decode_range(
        data, found, column, format=source.format, dialect=source.csv, counted=False
    )
    rows = decoded.rows
    times, there = times_of(rows.column(source.time_column), source.time_unit)
    there &= times <= time_max
    offsets = rows.column(OFFSET).to_numpy()[there]
    times = times[there]
    if chunk.footer:
        metadata = read_footer(chunk.footer)
        sizes = [metadata.row_group(g).num_rows for g in range(until)]
        last_row = np.cumsum(sizes)[chunk.start :]
        unit = np.searchsorted(last_row, offsets, side="right")
    else:
        unit = np.searchsorted(chunk.limits, offsets, side="right")
    units = Units.timeless(count)
    np.minimum.at(units.least, unit, times)
    np.maximum.at(units.greatest, unit, times)
    np.add.at(units.late, unit, (times < lower).astype(np.int64))
    return units


def take_ranges(
    chunks: Sequence[Chunk], late: Int64s, count: int, *, time_max: int
) -> list[tuple[SourceRange, bytes]]:
    """Return the ranges, with their bytes, of the first ``count`` units of all chunks."""
    found: list[tuple[SourceRange, bytes]] = []
    first = 0
    for chunk in chunks:
        taken = min(len(chunk.limits), count - first)
        if taken <= 0:
            break
        late_here = int(late[first : first + taken].sum())
        cut, data = chunk.range_until(int(chunk.limits[taken - 1]), late=late_here)
        found.append((msgspec.structs.replace(cut, time_max=time_max), data))
        first += len(chunk.limits)
    return found
