"""Parquet: a range has the row groups whose first byte is in it. Pure.

Shape: the bytes of a range are ``[footer length: 8 bytes little endian][footer][bytes of the row
    groups]``. The footer is the end of the file, from its metadata. The bytes of the row groups are
    one span of the file.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.collection.formats.lines import Bools, Int64s
from tidelog.collection.formats.names import match_names
from tidelog.collection.formats.records import (
    Misfit,
    Records,
    do_without_bad_rows,
    listed,
    row_texts,
)
from tidelog.collection.formats.types import bytes_type, plain_type
from tidelog.collection.formats.unknown import unknown_paths
from tidelog.errors import CorruptionError

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC: Final = b"PARE"
_SIGNATURE_BYTES: Final = 28  # A nonce and a tag after a footer that is signed, not encrypted.
_ENCRYPTED: Final = (
    "the parquet file is encrypted, which tidelog does not read: write it without encryption"
)
_NO_GROUPS: Final = np.zeros(0, dtype=np.int64)


def footer_bytes(tail: bytes) -> int:
    """Return the length of a file's footer, with magic and length, from the file's last 8 bytes.

    Raises:
        CorruptionError: the file is not parquet, or is encrypted.
    """
    if tail[-4:] == _ENCRYPTED_MAGIC:
        raise CorruptionError(_ENCRYPTED)
    if len(tail) < 8 or tail[-4:] != MAGIC:
        raise CorruptionError(
            "the file is not parquet, or is incomplete: wait for its writer, or move it away"
        )
    return int.from_bytes(tail[-8:-4], "little") + 8


def read_footer(footer: bytes) -> pq.FileMetaData:
    """Return a file's metadata from its footer alone.

    Raises:
        CorruptionError: the footer is damaged, or a column is encrypted or of an unknown type.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(MAGIC + footer))
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(
            "the footer of a parquet file cannot be decoded: restore the file, or move it away"
        ) from error
    except pa.ArrowNotImplementedError as error:
        raise CorruptionError(
            f"the parquet file has a type that cannot be read ({error}): write it with another type"
        ) from error
    if len(footer) - 8 - metadata.serialized_size == _SIGNATURE_BYTES:
        # Arrow aborts the process if code reads the metadata of an encrypted column.
        raise CorruptionError(_ENCRYPTED)
    return metadata


_OF_NANOSECONDS: Final = "nanoseconds: a value with digits past the microsecond is a bad row"
_CHANGED: Final = {
    "UUID": "UUIDs: their 16 bytes are stored as BLOB",
    "INTERVAL": "INTERVALs: their 12 bytes (months, days, milliseconds) are stored as BLOB",
    "INT96": _OF_NANOSECONDS,
}

# Keys of a file's metadata: Spark wrote dates before 1582-10-15 in the Julian calendar.
_LEGACY_CALENDAR: Final = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}


def changed_types(metadata: pq.FileMetaData) -> list[str]:
    """Return a notice for each column whose values a collection stores in another type."""
    found: list[str] = []
    if _LEGACY_CALENDAR & (metadata.metadata or {}).keys():
        found.append(
            "Spark wrote the file in its legacy calendar: dates and times before 1582-10-15 change "
            "by some days; write it with datetimeRebaseModeInWrite and int96RebaseModeInWrite "
            "CORRECTED to keep them"
        )
    for place in range(metadata.num_columns):
        leaf = metadata.schema.column(place)
        kinds = (leaf.physical_type, leaf.converted_type, leaf.logical_type.type)
        what = next((_CHANGED[kind] for kind in kinds if kind in _CHANGED), None)
        if "nanoseconds" in leaf.logical_type.to_json():
            what = _OF_NANOSECONDS
        if what is not None:
            found.append(f"column {leaf.path!r} has {what}")
    for field in metadata.schema.to_arrow_schema():
        zone = getattr(field.type, "tz", None)
        if zone not in (None, "UTC"):
            found.append(
                f"column {field.name!r} has the time zone {zone}: its times are stored in UTC"
            )
        if pa.types.is_map(field.type):
            found.append(f"column {field.name!r} has maps: they are stored as lists of entries")
    return found


def group_span(metadata: pq.FileMetaData, start: int, limit: int) -> tuple[int, int]:
    """Return the byte range of a file that contains the row groups ``[start, limit)``."""
    first, last = None, 0
    for group in range(start, limit):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            begin = column.data_page_offset
            if column.dictionary_page_offset is not None:
                begin = min(begin, column.dictionary_page_offset)
            first = begin if first is None else min(first, begin)
            last = max(last, begin + column.total_compressed_size)
    return first or 0, last


def group_starts(metadata: pq.FileMetaData) -> Int64s:
    """Return the offset of each row group: its first byte, but not before an earlier row group."""
    starts = [group_span(metadata, n, n + 1)[0] for n in range(metadata.num_row_groups)]
    return np.maximum.accumulate(np.array(starts, dtype=np.int64)) if starts else _NO_GROUPS


def groups_between(metadata: pq.FileMetaData, low: int, high: int) -> tuple[int, int]:
    """Return the indexes ``[first, last)`` of the row groups with offsets in ``[low, high)``."""
    first, last = np.searchsorted(group_starts(metadata), [low, high]).tolist()
    return first, max(first, last)


def pack_range(footer: bytes, groups: bytes) -> bytes:
    return len(footer).to_bytes(8, "little") + footer + groups


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """Row groups that begin in ``[low, high)`` of a file, packed; ``row`` is their first row."""

    data: bytes
    low: int
    high: int
    row: int
    rows: int

    def holds(self, offsets: Int64s) -> Bools:
        """Return a mask of the row numbers of the file that are in these groups."""
        found: Bools = (offsets >= self.row) & (offsets < self.row + self.rows)
        return found


def split_groups(data: bytes, low: int, high: int) -> list[PackedGroups]:
    """Return the row groups with offsets in ``[low, high)``, each packed alone.

    Row groups with the same offset, such as empty ones, are packed together.
    """
    footer, groups, metadata = _unpacked(data)
    first, last = groups_between(metadata, low, high)
    begin, _ = group_span(metadata, first, last)
    starts = group_starts(metadata)
    rows = np.array([metadata.row_group(g).num_rows for g in range(last)], dtype=np.int64)
    found: list[PackedGroups] = []
    for at in np.unique(starts[first:last]).tolist():
        one, following = groups_between(metadata, at, at + 1)
        least, greatest = group_span(metadata, one, following)
        packed = pack_range(footer, groups[least - begin : greatest - begin])
        before, within = int(rows[:one].sum()), int(rows[one:following].sum())
        found.append(PackedGroups(packed, at, at + 1, before, within))
    return found


def _unpacked(data: bytes) -> tuple[bytes, bytes, pq.FileMetaData]:
    """Return the footer of a packed range, the bytes of its groups, and the decoded footer."""
    length = int.from_bytes(data[:8], "little")
    footer = data[8 : 8 + length]
    return footer, data[8 + length :], read_footer(footer)


def decode_parquet(
    data: bytes, wanted: pa.Schema, *, low: int, high: int, folds_case: bool = False
) -> Records:
    """Decode the row groups with offsets in ``[low, high)``; a row's offset is its row number.

    Raises:
        CorruptionError: the footer cannot be decoded.
    """
    footer, groups, metadata = _unpacked(data)
    start, limit = groups_between(metadata, low, high)
    first, last = group_span(metadata, start, limit)
    size = max(last, first) + len(footer)
    sparse = SparseFile({first: groups, size - len(footer): footer}, size)

    def opened(unit: str) -> pq.ParquetFile:
        pages = pa.PythonFile(sparse, mode="r")
        return pq.ParquetFile(pages, metadata=metadata, coerce_int96_timestamp_unit=unit)

    names = metadata.schema.to_arrow_schema().names
    own = match_names(names, wanted.names) if folds_case else names
    # If two columns have one name, the first counts.
    spelled = dict(reversed([*zip(own, names, strict=True)]))
    known = [spelled[n] for n in wanted.names if n in spelled]
    wide = wide_moments(metadata, known)
    file = opened("us" if wide else "ns")
    exact = opened("ns") if wide else file
    told = pa.schema([field.with_type(plain_type(field.type)) for field in file.schema_arrow])
    # A table without columns has no rows. So read all columns of a file without a wanted one.
    present = known or list(dict.fromkeys(names))
    sizes = np.array([metadata.row_group(g).num_rows for g in range(limit)], dtype=np.int64)
    begins = np.cumsum(sizes) - sizes

    def read(first: int, last: int) -> tuple[pa.Table, Int64s, list[Misfit]]:
        if first == last:
            return _firsts(told.empty_table(), present), begins[:0], []
        numbers = np.arange(
            begins[start + first], begins[start + last - 1] + sizes[start + last - 1]
        )
        wanted_groups = list(range(start + first, start + last))
        found = _firsts(
            file.read_row_groups(wanted_groups, columns=present, use_threads=False), present
        )
        if not wide:
            return found, numbers, []
        nanos = _firsts(exact.read_row_groups(wanted_groups, columns=wide, use_threads=False), wide)
        cut = cut_moments(found, nanos, wide)
        bad = np.array(sorted(cut), dtype=np.int64)
        why = [f"column {cut[row]!r} has nanoseconds, unlike its type" for row in bad.tolist()]
        lost = map(Misfit, numbers[bad].tolist(), why, listed(row_texts(found.take(bad))))
        kept = np.delete(np.arange(len(numbers)), bad)
        return found.take(kept), numbers[kept], list(lost)

    done, failed = do_without_bad_rows(limit - start, read)
    misfits = [
        _unread_group(int(begins[start + n]), int(sizes[start + n]), why)
        for n, why in failed.items()
    ]
    misfits += [misfit for *_, lost in done for misfit in lost]
    tables = [one for one, *_ in done] or [_firsts(told.empty_table(), present)]
    table = with_sound_text(pa.concat_tables(tables))
    unknown = unknown_paths(renamed(told, own), wanted)
    return Records(
        wanted_columns(table, spelled, wanted),
        np.concatenate([begins[:0], *(numbers for _, numbers, _ in done)]),
        lambda some: row_texts(table.take(some)),
        misfits,
        {name: table.num_rows for name in unknown if table.num_rows},
    )


def _unread_group(first: int, rows: int, why: str) -> Misfit:
    return Misfit(first, f"the row group cannot be read: {why}", f"{rows} rows from this one")


def renamed(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def wanted_columns(table: pa.Table, spelled: Mapping[str, str], wanted: pa.Schema) -> pa.Table:
    """Return the wanted columns, found by the file's spelling; a missing column is all null."""
    rows = table.num_rows
    columns = [
        table.column(spelled[f.name]) if f.name in spelled else pa.nulls(rows, f.type)
        for f in wanted
    ]
    return pa.table(columns, names=wanted.names)


def _firsts(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the columns of these names, with plain types; the first wins if a name is repeated."""
    places = {name: place for place, name in reversed(list(enumerate(table.column_names)))}
    columns = [table.column(places[name]) for name in names]
    plain = [
        one.cast(kind) if (kind := plain_type(one.type)) != one.type else one for one in columns
    ]
    return pa.table(plain, names=list(names)) if names else table.select([])


def with_sound_text(table: pa.Table) -> pa.Table:
    """Return the table with each text column that is not all UTF-8 converted to bytes.

    Parquet writers need not check text, and Arrow does not check it when it reads.
    """
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if (kind := bytes_type(column.type)) == column.type:
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            table = table.set_column(place, name, column.cast(kind))
    return table


def wide_moments(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """Return the wanted columns that are, or contain, timestamps of 96 bits.

    Such a timestamp is a day of any year and nanoseconds of that day. Arrow converts it to
    nanoseconds since 1970, which overflow in the year 2262 and wrap around to another time.
    """
    leaves = (metadata.schema.column(place) for place in range(metadata.num_columns))
    paths = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    within = {path.split(".")[0] for path in paths}
    return [name for name in names if name in paths or name in within]


def cut_moments(micros: pa.Table, nanos: pa.Table, names: Sequence[str]) -> dict[int, str]:
    """Return the rows with a timestamp that has digits past the microsecond, and its column."""
    found: dict[int, str] = {}
    for name in names:
        pair = (one.column(name).combine_chunks() for one in (nanos, micros))
        found.update(dict.fromkeys(np.flatnonzero(_are_cut(*pair)).tolist(), name))
    return found


def _are_cut(nanos: pa.Array[Any], micros: pa.Array[Any]) -> Bools:
    """Return a mask of the values that are, or contain, timestamps cut at the microsecond.

    Nanoseconds may have wrapped around. The product here wraps around in the same way, so their
    difference is exact.
    """
    cut = np.zeros(len(nanos), dtype=np.bool_)
    if nanos.type == micros.type:
        return cut
    if pa.types.is_struct(nanos.type):
        for place in range(nanos.type.num_fields):
            cut |= _are_cut(pc.struct_field(nanos, place), pc.struct_field(micros, place))
    elif pa.types.is_nested(nanos.type):
        rows = pc.list_parent_indices(_as_list(nanos)).to_numpy()
        cut[rows[_are_cut(*(pc.list_flatten(_as_list(one)) for one in (nanos, micros)))]] = True
    else:
        low, high = (_numbers(one) for one in (nanos, micros))
        cut = low - high * 1_000 != 0
    return cut


def _numbers(array: pa.Array[Any]) -> Int64s:
    filled: Any = pc.fill_null(array.cast(pa.int64()), pa.scalar(0))
    numbers: Int64s = filled.to_numpy()
    return numbers


def _as_list(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return maps as lists of their entries, and lists unchanged."""
    dtype: Any = array.type
    if not pa.types.is_map(dtype):
        return array
    entries = pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])
    return array.cast(pa.list_(pa.field("item", entries)))


class SparseFile(io.RawIOBase):
    """A file with only some spans in memory. A read of other bytes is a bug of tidelog."""

    def __init__(self, spans: dict[int, bytes], size: int) -> None:
        super().__init__()
        self._spans = spans
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._at if size < 0 else size
        for begin, data in self._spans.items():
            if begin <= self._at and self._at + wanted <= begin + len(data):
                found = data[self._at - begin : self._at - begin + wanted]
                self._at += len(found)
                return found
        if wanted == 0 or self._at >= self._size:
            return b""
        raise OSError(f"bytes {self._at} to {self._at + wanted} were not read")
