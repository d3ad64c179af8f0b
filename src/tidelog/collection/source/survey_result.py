"""The examination of a survey's bytes: text, and row groups of parquet. Pure.

Source: design page 6, "Who reads what".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.csv.decode import header_names, header_of
from tidelog.collection.formats.foreign import OLD_LINE_ENDS, has_old_line_ends, why_foreign
from tidelog.collection.formats.json.arrays import (
    ARRAY_FORMAT,
    array_end,
    array_lines,
    array_mark,
)
from tidelog.collection.formats.lines import WHITE, Bools, CsvDialect, Int64s, record_ends
from tidelog.collection.formats.names import match_names, twin_of
from tidelog.collection.formats.parquet import group_span, group_starts, groups_between, pack_range
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.formats.text import TEXT_FORMAT
from tidelog.collection.formats.times import times_of
from tidelog.collection.source.binding import ANY_TIME, FileRange, sum_blocks, sum_of, sum_of_rest
from tidelog.collection.source.decode import (
    DecodedRows,
    decode_file,
    decode_range,
    required_columns,
)
from tidelog.collection.source.decoded_cache import KeepRows, piece_of
from tidelog.collection.source.fetch import can_be_shared, is_divisible
from tidelog.collection.source.kind import SourceKind
from tidelog.collection.source.survey_facts import (
    TORN,
    TORN_ARRAY,
    AnyPiece,
    Block,
    SurveyFacts,
    SurveyPiece,
    array_and_more,
)
from tidelog.collection.source.times_of_blocks import group_block, text_blocks
from tidelog.errors import CorruptionError, HeaderDiffers
from tidelog.persist.format.schema import ShardSchema, decode_schema

HEAD_BYTES: Final = 4_096
FIRST_LOOK_BYTES: Final = 256 * 1024
SMALL_SURVEY_BYTES: Final = 1024 * 1024
SMALL_SURVEY_FILES: Final = 16
# Half of the range of int64. Bindings after a row with this time still have times left.
LAST_TIME: Final = 2**62
_INK: Final = re.compile(rb"[^ \t\r\n]")


class SurveyJob(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a survey, as a plain value: any process can do it, or a part of it.

    Shape: rows earlier than ``lower`` are late, and those later than ``time_max`` are bad. With
        ``final``, a text file's last record is whole without a line end. With ``is_versioned``, the
        version of an object proves its bytes, so none are summed. ``kind`` is the source's kind, if
        it is registered only in this process, so that an executor could not find it by name.
    """

    source: SourceInfo
    schema: bytes
    lower: int
    time_max: int
    final: bool
    is_versioned: bool
    pieces: tuple[AnyPiece, ...]
    kind: type[SourceKind] | None = None
    schema_id: int = 0

    @property
    def data_schema(self) -> ShardSchema:
        return decode_schema(self.schema)

    @property
    def is_timed(self) -> bool:
        return self.source.time_column is not None

    @property
    def is_final(self) -> bool:
        return self.final or self.is_versioned

    def is_light(self, path: str) -> bool:
        """Return True if only a header or footer must be read: without sums and without times."""
        return self.is_versioned and not self.is_timed and can_be_shared(self.source, path)

    def is_small(self, bytes_max: int = SMALL_SURVEY_BYTES) -> bool:
        """Return True if the survey is so small that other processes would not make it faster."""
        size = sum(piece.weight_bytes for piece in self.pieces)
        return size <= bytes_max and len(self.pieces) <= SMALL_SURVEY_FILES


def greatest_time(source: SourceInfo, *, now_us: int, lower: int) -> int:
    """Return the greatest permitted time of a row.

    A row far in the future would advance the upper there for good, and make all later rows late.
    """
    if source.time_column is None:
        return ANY_TIME
    ahead_ms = source.max_ahead_ms
    # A time before `lower` is complete already. It cannot move the upper, even if it is after the
    # clock.
    return max(LAST_TIME if ahead_ms is None else now_us // 1_000 + ahead_ms, lower)


def look_at_text(
    data: bytes,
    piece: SurveyPiece,
    job: SurveyJob,
    *,
    header: bytes,
    lead: bytes | None = None,
    keep_rows: KeepRows | None = None,
) -> SurveyFacts:
    """Return the survey of a piece of a text file; ``data`` are its bytes from ``piece.low``.

    Shape: if the end of its last record matters, ``data`` continues after the piece to that end.
        ``lead`` is the part before the piece of the record in which the piece begins, if known.
        With times from the data, ``keep_rows`` is called with the decoded rows.

    Raises:
        CorruptionError: the file is not text, or has unknown line ends.
        HeaderDiffers: the file's header lacks most of the source's columns.
    """
    asked, dialect = piece.candidate, job.source.dialect
    at_end = piece.low + len(data) >= asked.size_bytes
    if piece.low == 0 and asked.before is None:
        check_text(data, job.source)
    if piece.low == 0 and dialect is not None and dialect.has_header:
        found = header_of(data, dialect)
        if found is None and not (at_end and job.is_final):
            return SurveyFacts(waits=TORN)
        header = data if found is None else found
        check_header(header, job.data_schema, dialect, path=asked.path)
    text, header = text_of(data, piece.low, job.source, header)
    is_array = bool(header) and job.source.format == ARRAY_FORMAT
    lead = b"" if piece.is_first else lead
    whole = _whole_bytes(text, piece, job, at_end=at_end, lead=lead, is_array=is_array)
    limit = piece.low + whole if whole else None
    ink = _first_ink(text, piece, header)
    summed = data[:whole] if piece.is_last else data[: piece.high - piece.low]
    head = b""
    # A first record that is longer than the piece is whole if anything of the file is taken.
    known = whole if piece.is_last else whole or piece.high - piece.low
    if asked.start == 0 and piece.is_first and known:
        line = data.find(b"\n", 0 if ink is None else ink)
        head = data[: min(HEAD_BYTES, known, line + 1 if line >= 0 else known)]
    timed = _PieceTimes()
    if job.is_timed:
        timed = _text_times(data, whole, piece, job, header, is_kept=keep_rows is not None)
    surveyed = SurveyFacts(
        sums=b"" if job.is_versioned else sum_blocks(summed, piece.low, asked.block_bytes),
        limit=limit,
        rest=RestSums(data, piece, job)(limit) if limit is not None else b"",
        ink=ink,
        blocks=tuple(timed.blocks),
        head=sum_of(head) if head else b"",
        head_bytes=len(head),
        header=header,
        # A survey that did not ask for the file's end has no reason to report about it.
        torn=_why_torn(data, piece, is_array=is_array)
        if at_end and whole < len(data) and _is_asked(piece, whole)
        else "",
    )
    if keep_rows is not None and timed.decoded is not None:
        tail = b"" if piece.is_last else data[piece.high - piece.low : timed.limit]
        end = piece.low + timed.limit
        schema_id = job.schema_id
        keep_rows(piece_of(piece, surveyed, timed.decoded, end=end, tail=tail, schema_id=schema_id))
    return surveyed


def _why_torn(data: bytes, piece: SurveyPiece, *, is_array: bool) -> str:
    if not is_array:
        return TORN
    end = array_end(data, inside=piece.low > 0)
    return TORN_ARRAY if end is None else array_and_more(piece.low + end)


def check_text(begin: bytes, source: SourceInfo) -> None:
    """Check by its beginning that a file is UTF-8 text with line ends that tidelog reads.

    Raises:
        CorruptionError: the file is of another format, or has old line ends (a lone CR).
    """
    why = why_foreign(begin)
    if why is not None:
        raise CorruptionError(why)
    if source.format == ARRAY_FORMAT and array_mark(begin):
        return
    quote = source.csv.quote.encode() if source.format == "csv" else b""
    if has_old_line_ends(begin, quote) and not _stands_alone(begin, source.format):
        raise CorruptionError(OLD_LINE_ENDS)


def _is_asked(piece: SurveyPiece, whole: int) -> bool:
    """Return True if the piece covers the file's end, or a record that only the end could end."""
    return piece.is_last and (piece.candidate.ends_the_file or not whole)


@dataclass(frozen=True, slots=True)
class RestSums:
    """The sums of a block's part before an offset, computed from the bytes of a piece."""

    data: bytes | memoryview
    piece: SurveyPiece
    job: SurveyJob

    def __call__(self, offset: int) -> bytes:
        if self.job.is_versioned:
            return b""
        block_bytes = self.piece.candidate.block_bytes
        return sum_of_rest(self.data, self.piece.low, offset, block_bytes)


def _whole_bytes(
    data: bytes,
    piece: SurveyPiece,
    job: SurveyJob,
    *,
    at_end: bool,
    lead: bytes | None,
    is_array: bool,
) -> int:
    """Return the length of the whole records in ``data``.

    For a piece that is not the last, records count that end in the piece.
    """
    span = piece.high - piece.low
    if not is_divisible(job.source):
        ends = record_ends(data, job.source.dialect, final=at_end and job.is_final)
        whole = int(ends[-1]) if len(ends) else 0
    elif not piece.is_last:
        return data.rfind(b"\n", 0, span) + 1
    elif not piece.candidate.ends_the_file and (line := data.find(b"\n", span - 1)) >= 0:
        return line + 1
    else:
        whole = data.rfind(b"\n") + 1
    if whole == len(data) or not at_end:
        return whole
    if job.source.format == ARRAY_FORMAT and not data[whole:].strip(WHITE):
        return len(data)
    if is_array:
        return len(data) if job.is_final else whole  # Only its bracket ends an array.
    last = data[whole:] if whole else (lead or b"") + data
    known = whole or lead is not None
    is_whole = job.is_final or (known and _stands_alone(last, job.source.format))
    return len(data) if is_whole else whole


def text_of(data: bytes, low: int, source: SourceInfo, header: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of a file from ``low`` as lines of records, and the file's header."""
    if source.format != ARRAY_FORMAT:
        return data, header
    mark = header if low else array_mark(data)
    return (array_lines(data, inside=low > 0) if mark else data), mark


def has_record_end(
    data: bytes, size: int, low: int, source: SourceInfo, *, before: FileRange | None
) -> bool:
    """Return True if ``data``, which begins with a piece of ``size`` bytes, has a record's end.

    If records can be split off anywhere, only an end at the piece's last byte or later counts. The
    piece begins at ``low``. ``before`` is the newest bound range of its file.
    """
    if is_divisible(source):
        return data.find(b"\n", max(0, size - 1)) >= 0
    header = before.header if before is not None else b""
    share = FIRST_LOOK_BYTES
    while True:
        # A record that ends in a prefix also ends in the whole. Most records are short, so try
        # short prefixes first.
        text, _ = text_of(data[:share], low, source, header)
        if len(record_ends(text, source.dialect, final=False)):
            return True
        if share >= len(data):
            return False
        share *= 8


def _stands_alone(line: bytes, format: str) -> bool:
    """Return True if a last line without a line end is whole: a complete json object is."""
    try:
        return format not in ("csv", TEXT_FORMAT) and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _first_record(data: bytes, piece: SurveyPiece) -> int:
    """Return the place, relative to ``piece.low``, of the first record that starts in a piece."""
    return 0 if piece.is_first else (data.find(b"\n") + 1 or len(data))


def _first_ink(data: bytes, piece: SurveyPiece, header: bytes) -> int | None:
    skipped = len(header) if piece.low == 0 else 0
    found = _INK.search(data, max(skipped, _first_record(data, piece)))
    return piece.low + found.start() if found is not None else None


@dataclass(frozen=True, slots=True)
class _PieceTimes:
    """The times of a piece by blocks, and its decoded records, up to ``limit`` of its bytes."""

    blocks: Sequence[Block] = ()
    decoded: DecodedRows | None = None
    limit: int = 0


def _text_times(
    data: bytes, whole: int, piece: SurveyPiece, job: SurveyJob, header: bytes, *, is_kept: bool
) -> _PieceTimes:
    """Return the times of a piece; with ``is_kept``, all columns of its records are decoded."""
    start = _first_record(data, piece)
    limit = whole
    if not piece.is_last:
        # The record that starts at the piece's end is the piece's last one: see `SurveyPiece`.
        line = data.find(b"\n", piece.high - piece.low)
        limit = line + 1 if line >= 0 else data.rfind(b"\n") + 1
        if line < 0 and job.is_final:
            limit = len(data)
    if start >= limit or (not piece.is_last and start > piece.high - piece.low):
        return _PieceTimes()
    found = FileRange(
        path=piece.candidate.path, start=piece.low + start, limit=piece.low + limit, header=header
    )
    text, decoded = data[start:limit], None
    if is_kept:
        decoded = _decode_whole(text, found, job)
    if decoded is None or decoded.errors.num_rows:
        # A row whose fault is in another column still has a time, so read the time column alone.
        # But a bad row with an old time does not count as late.
        offsets, times = times_in(text, found, job, decoded)
    else:
        offsets, times = _times_of_rows(decoded.rows, job)
    blocks = text_blocks(
        offsets,
        times,
        lower=job.lower,
        block_bytes=piece.candidate.block_bytes,
        rest_until=RestSums(data, piece, job),
    )
    return _PieceTimes(blocks, decoded, limit)


def _decode_whole(data: bytes, found: FileRange, job: SurveyJob) -> DecodedRows:
    """Decode records exactly as the computation of the binding does."""
    source, schema = job.source, job.data_schema
    required = required_columns(source, schema)
    return decode_file(data, found, schema.data, source=source, required=required)


def times_in(
    data: bytes, found: FileRange, job: SurveyJob, whole: DecodedRows | None = None
) -> tuple[Int64s, Int64s]:
    """Return the offsets and times of the rows with a time; only the time column is decoded.

    A late row that is also bad is left out, because it counts as bad. To find these, all columns
    are decoded, but only if some row is late and the caller has no ``whole`` decoding.
    """
    source = job.source
    name = source.time_column or ""
    column = pa.schema([job.data_schema.data.field(name)])
    decoded = decode_range(
        data, found, column, format=source.format, dialect=source.csv, counted=False
    )
    offsets, times = _times_of_rows(decoded.rows, job)
    late = times < job.lower
    if not late.any():
        return offsets, times
    errors = (whole or _decode_whole(data, found, job)).errors
    kept = ~(late & np.isin(offsets, errors.column("offset").to_numpy()))
    return offsets[kept], times[kept]


def _times_of_rows(rows: pa.Table, job: SurveyJob) -> tuple[Int64s, Int64s]:
    source = job.source
    times, there = times_of(rows.column(source.time_column or ""), source.time_unit)
    there &= times <= job.time_max
    return rows.column(OFFSET).to_numpy()[there], times[there]


@dataclass(frozen=True, slots=True)
class ReadGroups:
    """Bytes of a parquet file from ``start``, and its footer, as bytes and decoded."""

    data: bytes
    start: int
    footer: bytes
    metadata: pq.FileMetaData


def look_at_groups(read: ReadGroups, piece: SurveyPiece, job: SurveyJob) -> SurveyFacts:
    """Return the survey of a piece's row groups.

    Shape: as far as they are needed, the bytes reach to the end of the piece's last row group. For
        a last piece, they reach to the beginning of the next row group.
    """
    metadata, block_bytes = read.metadata, piece.candidate.block_bytes
    limit = end_of_groups(metadata, piece) if piece.is_last else None
    sums, rest = b"", b""
    if not job.is_versioned:
        high = piece.high if limit is None else limit
        summed = memoryview(read.data)[piece.low - read.start : high - read.start]
        sums = sum_blocks(summed, piece.low, block_bytes)
        rest = RestSums(read.data, piece, job)(limit) if limit is not None else b""
    first, last = groups_between(metadata, *piece.window)
    is_timed = job.is_timed and first < last
    return SurveyFacts(
        sums=sums,
        limit=limit,
        rest=rest,
        ink=int(group_starts(metadata)[first]) if first < last else None,
        blocks=tuple(_group_times(read, piece, job)) if is_timed else (),
        head=sum_of(read.footer),
        head_bytes=len(read.footer),
    )


def end_of_groups(metadata: pq.FileMetaData, piece: SurveyPiece) -> int:
    """Return the end of a last piece's row groups: the next place to cut, or the file's end."""
    starts, high = group_starts(metadata), piece.high
    clean = np.flatnonzero((starts >= high) & _begin_cleanly(metadata, starts))
    return int(starts[clean[0]]) if len(clean) else piece.candidate.size_bytes


def _begin_cleanly(metadata: pq.FileMetaData, starts: Int64s) -> Bools:
    """Return a mask of the row groups before which a file can be cut.

    All earlier row groups must end before it; a writer may interleave the columns of row groups.
    """
    ends = np.array([group_span(metadata, n, n + 1)[1] for n in range(len(starts))], np.int64)
    reached = np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(ends)])[: len(starts)]
    clean: Bools = reached <= starts
    return clean


def _group_times(read: ReadGroups, piece: SurveyPiece, job: SurveyJob) -> list[Block]:
    metadata = read.metadata
    low, high = piece.window
    first, last = groups_between(metadata, low, high)
    begin, end = group_span(metadata, first, last)
    packed = pack_range(read.footer, read.data[begin - read.start : end - read.start])
    found = FileRange(path=piece.candidate.path, start=low, limit=high)
    rows, times = times_in(packed, found, job)
    sizes = np.array([metadata.row_group(n).num_rows for n in range(last)], np.int64)
    bounds = np.searchsorted(rows, np.concatenate([[0], np.cumsum(sizes)])[first:])
    starts = group_starts(metadata)
    clean = _begin_cleanly(metadata, starts)
    return [
        group_block(
            int(starts[first + n]),
            times[bounds[n] : bounds[n + 1]],
            lower=job.lower,
            can_end_before=bool(clean[first + n]),
            rest_until=RestSums(read.data, piece, job),
        )
        for n in range(last - first)
    ]


def check_header(header: bytes, schema: ShardSchema, dialect: CsvDialect, *, path: str) -> None:
    """Check that a file's header has at least half of the columns of its source.

    Otherwise most values of the file would be lost without an error. The columns that the source
    had before an alteration are enough, because a program may still write files without new ones.

    Raises:
        HeaderDiffers: the header lacks more than half of the columns of each schema.
    """
    try:
        found = header_names(header, dialect)
    except ValueError:
        found = []
    if all(_lacks_most(found, one.names, dialect) for one in (*schema.known, schema.data)):
        missing = _missing(found, schema.names, dialect)
        raise HeaderDiffers(
            f"the header of the file {path!r} lacks most of the source's columns "
            f"({', '.join(missing[:8])}): "
            + _remedy(found, missing, "correct the file's first line, or move the file away")
        )


def _lacks_most(found: list[str], columns: Sequence[str], dialect: CsvDialect) -> bool:
    return len(_missing(found, columns, dialect)) * 2 > len(columns)


def _missing(found: list[str], columns: Sequence[str], dialect: CsvDialect) -> list[str]:
    names = {*_own_names(found, columns, dialect)}
    return [name for name in columns if name not in names]


def _remedy(names: Sequence[str], missing: Sequence[str], other: str) -> str:
    if any(twin_of(name, missing) for name in names):
        return "its names differ only in case, which a source with the option ignore_case ignores"
    return other


def _own_names(names: list[str], columns: Sequence[str], dialect: CsvDialect) -> list[str]:
    return match_names(names, columns) if dialect.folds_case else names


def check_columns(names: Sequence[str], job: SurveyJob, *, path: str) -> None:
    """Check that a parquet or avro file with rows has one of the source's columns.

    Otherwise each of its rows would consist of nulls.

    Raises:
        HeaderDiffers: the file has none of the columns.
    """
    columns = job.data_schema.names
    if not {*_own_names([*names], columns, job.source.csv)} & {*columns}:
        other = "add one by 'tidelog source alter', rename them in the file, or move the file away"
        remedy = _remedy(names, columns, other)
        raise HeaderDiffers(
            f"the {job.source.format} file {path!r} has none of the source's columns "
            f"({', '.join(columns[:8])}); its columns are {', '.join(names[:8])}: "
            f"{remedy}"
        )
