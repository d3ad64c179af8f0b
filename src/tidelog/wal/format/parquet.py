"""Opening the Parquet files of records, of either protocol. Pure.

A process that can write to the store can write a file of a few kilobytes that takes gigabytes to
read. So before decoding, the reader compares the sizes in the footer and the page headers with the
file's size. If values may repeat, it counts their bytes before it expands them.

Invariants: a read takes at most a few times `bytes_allowed`, plus 24 bytes for each of
`RECORDS_MAX` records, plus the file itself. An error of a library about the bytes becomes a
CorruptionError; a lack of memory does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.errors import CorruptionError
from tidelog.wal.format.parquet_meta import (
    BYTE_ARRAY,
    DELTA_LENGTH_BYTE_ARRAY,
    DICTIONARY_PAGE,
    INT64,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    ColumnChunk,
    Footer,
    pages_of,
    read_footer,
)

RECORDS_MAX: Final = 2**23  # Per object.
BYTES_MIN: Final = 128 * 1024 * 1024
RATIO_MAX: Final = 32  # Both protocols write Snappy, which expands one byte to at most 22.
# Both protocols write with these sizes. The readers' limits on groups and pages rely on them, so a
# library's defaults must not replace them.
GROUP_ROWS: Final = 2**20
PAGE_BYTES: Final = 2**20
_LIST_MAX: Final = 4_096
_LEAST: Final = {INT64: 8, BYTE_ARRAY: 4}  # Minimum bytes of a value.
# Encodings in which each value is stored itself, or is an index into a dictionary.
_BOUNDED: Final = (PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY)
_FOREIGN: Final = (pa.ArrowException, ValueError, LookupError, TypeError, OSError)
_REASON_MAX: Final = 300


def bytes_allowed(size_bytes: int) -> int:
    """Return the bytes of streams, keys and bodies that a file of a size may decode to."""
    return max(BYTES_MIN, RATIO_MAX * size_bytes)


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A Parquet file of records with its footer. ``what`` and ``path`` name it in errors."""

    data: bytes
    path: str
    what: str
    footer: Footer

    def read(self, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        """Read the columns ``names``, in any encodings, as the columns of ``schema``, in order.

        Raises:
            CorruptionError: a column is missing, has another type, or has nulls where ``schema``
            allows none; or the file would decode to more than a file of its size may.
        """
        with told_as_damage(self.path, self.what):
            shared = _look_at_promises(self.data, self.footer, names)
            found = self._read(names, shared)
            columns = [found.column(name) for name in names]
            for field, column in zip(schema, columns, strict=True):
                if column.type != field.type or (column.null_count and not field.nullable):
                    raise ValueError(f"its column {field.name} has the wrong type, or nulls")
            return pa.Table.from_arrays(columns, schema=schema)

    def _read(self, names: Sequence[str], shared: Sequence[str]) -> pa.Table:
        """Read columns; keep the ``shared`` ones as dictionaries, whose values may repeat often."""
        file = pq.ParquetFile(
            pa.BufferReader(self.data),
            pre_buffer=False,
            read_dictionary=list(shared),
            # Page statistics may repeat bodies, which may be as large as the file.
            thrift_string_size_limit=len(self.data),
            thrift_container_size_limit=_LIST_MAX,
        )
        is_all = len(self.footer.leaves) == len(names)
        found: Any = file.read(columns=None if is_all else list(names), use_threads=False)
        for name in names:
            column = found.column(name)
            if pa.types.is_dictionary(column.type) and _is_bytes(column.type.value_type):
                if _size_of_shared(column) > bytes_allowed(len(self.data)):
                    raise ValueError(
                        "its dictionary values repeat more often than allowed for its size"
                    )
            elif column.type == pa.binary() or not _is_bytes(column.type):
                continue  # The type is right, or the caller refuses it.
            found = found.set_column(found.column_names.index(name), name, column.cast(pa.binary()))
        table: pa.Table = found
        return table


def open_records(data: bytes, *, path: str, what: str) -> RecordFile:
    """Open a file, or its last bytes, and read only the footer.

    Raises:
        CorruptionError: the footer is missing or broken.
    """
    with told_as_damage(path, what):
        return RecordFile(data, path, what, read_footer(data))


@contextmanager
def told_as_damage(path: str, what: str) -> Iterator[None]:
    """Turn an error of a library about stored bytes into an error that names the object.

    Raises:
        CorruptionError: a library refused the bytes.
    """
    try:
        yield
    except pa.ArrowMemoryError:
        # The sizes in the file were checked, so this is about the machine, not about the file.
        raise
    except _FOREIGN as error:
        raise CorruptionError(
            f"{what} cannot be read: restore it, or move it away ({str(error)[:_REASON_MAX]})",
            path=path,
        ) from error


def _look_at_promises(data: bytes, footer: Footer, names: Sequence[str]) -> list[str]:
    """Refuse a file that may decode to too much; return the columns that need a check for repeats.

    Raises:
        ValueError: the file may decode to too much, or contradicts its footer.
    """
    if footer.rows > RECORDS_MAX:
        raise ValueError(
            f"its footer declares {footer.rows} records, but at most {RECORDS_MAX} are allowed"
        )
    if footer.rows != sum(rows for rows, _ in footer.groups):
        raise ValueError("its row groups do not add up to its number of rows")
    allowed = bytes_allowed(len(data))
    total, shared = 0, list[str]()
    for name in names:
        place = _place_of(footer, name)
        found = [_promise_of(data, footer, place, rows, columns) for rows, columns in footer.groups]
        total += sum(one.plain + one.dictionary + one.chained for one in found)
        if footer.leaves[place].type != BYTE_ARRAY:
            continue
        if footer.rows * sum(one.chained for one in found) > allowed:
            raise ValueError(
                f"its column {name} has an encoding that does not bound its decoded size"
            )
        if footer.rows * max((one.dictionary for one in found), default=0) > allowed:
            shared.append(name)
    if total > allowed:
        raise ValueError(
            f"its pages declare {total} bytes, but at most {allowed} are allowed for its size"
        )
    return shared


class _Promise(NamedTuple):
    """Bytes of a column's pages, by how they may expand.

    A ``plain`` page decodes to its own size. A value of a ``dictionary`` page may occur in every
    row. In a ``chained`` page each value may repeat the one before it.
    """

    plain: int
    dictionary: int
    chained: int


def _promise_of(
    data: bytes, footer: Footer, place: int, rows: int, columns: Sequence[ColumnChunk]
) -> _Promise:
    if len(columns) != len(footer.leaves) or columns[place].values != rows:
        raise ValueError("its columns differ in length")
    plain = dictionary = chained = 0
    for page in pages_of(data, columns[place]):
        if page.kind == DICTIONARY_PAGE:
            dictionary += page.size_bytes
            if page.values * _LEAST[footer.leaves[place].type] > page.size_bytes:
                raise ValueError("a dictionary page is too small for its values")
        elif page.encoding in _BOUNDED:
            plain += page.size_bytes
        else:
            chained += page.size_bytes
    return _Promise(plain, dictionary, chained)


def _place_of(footer: Footer, name: str) -> int:
    """Return the index of a column, which must occur once and be flat."""
    found = [place for place, leaf in enumerate(footer.leaves) if leaf.name == name]
    leaf = footer.leaves[found[0]] if len(found) == 1 else None
    if leaf is None or not leaf.is_flat or leaf.type not in _LEAST:
        raise ValueError(f"its column {name} is missing, occurs twice, or has the wrong type")
    return found[0]


def _is_bytes(dtype: pa.DataType) -> bool:
    """Return True if values are bytes, in any of Arrow's layouts."""
    return dtype in (pa.binary(), pa.large_binary(), pa.binary_view())


def _size_of_shared(column: Any) -> int:
    """Return the bytes of a dictionary column after each value is written out."""
    total = 0
    for chunk in column.chunks:
        lengths = pc.binary_length(chunk.dictionary)
        total += pc.sum(pc.cast(pc.take(lengths, chunk.indices), pa.int64())).as_py() or 0
    return total
