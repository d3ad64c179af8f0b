"""The metadata of a Parquet file: its footer, and the headers of its pages. Pure.

A footer does not show how much memory its file needs. A dictionary with one value of a megabyte,
and a few bytes that repeat it, become a column of gigabytes. The page headers give each page's
encoding and decompressed size, but Arrow does not expose them. Arrow must also not read the columns
of a forged footer, because some forgeries crash the process. So this module has a reader of
Thrift's compact protocol, in which Parquet encodes its metadata.

Shape: a `Shape` lists the wanted fields of a struct and the kind that each must have. The result is
a dict of those that exist; all other fields are skipped.
Invariants: this module finds pages where Arrow finds them. Memory and time are bounded by the
number of bytes read.
Source: the Parquet format, parquet.thrift; Thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

I32: Final = 5
I64: Final = 6
BINARY: Final = 8
_TRUE: Final = 1
_FALSE: Final = 2
_BYTE: Final = 3
_I16: Final = 4
_DOUBLE: Final = 7
_LIST: Final = 9
_SET: Final = 10
_STRUCT: Final = 12
_NUMBERS: Final = (I32, I64, _I16)
_WIDTHS: Final = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}
_MOST: Final = {I32: 2**31, I64: 2**63}

_DEPTH_MAX: Final = 8
_LIST_MAX: Final = 4_096  # Columns, row groups or key-value pairs: our files have a few.

# Maps a field to a kind of number, BINARY, the shape of a struct, or a 1-tuple with the shape of a
# list's structs.
Shape: TypeAlias = Mapping[int, Any]
Struct: TypeAlias = dict[int, Any]


def read_struct(data: bytes, at: int, shape: Shape) -> tuple[Struct, int]:
    """Read the struct that begins at offset ``at``; return it and its end.

    Raises:
        ValueError: it is not a struct, or a field has another kind than its shape says.
    """
    try:
        return _struct(data, at, shape, 0)
    except IndexError:
        raise ValueError("it is truncated") from None


def _struct(data: bytes, at: int, shape: Shape, depth: int) -> tuple[Struct, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    found: Struct = {}
    field = 0
    while head := data[at]:
        kind = head & 15
        if head < 16:
            raise ValueError("its fields are out of order")
        field += head >> 4
        at += 1
        wanted = shape.get(field)
        if kind in _MOST:
            number = data[at]
            at += 1
            if number > 127:
                number, at = _longer(data, at, number)
            if wanted is None:
                continue
            number = (number >> 1) ^ -(number & 1)
            if kind != wanted or not -_MOST[kind] <= number < _MOST[kind]:
                raise ValueError(f"its field {field} has another type or is out of range")
            found[field] = number
        elif wanted is None:
            at = _skipped(data, at, kind, depth)
        else:
            found[field], at = _value(data, at, kind, wanted, depth)
    return found, at + 1


def _value(data: bytes, at: int, kind: int, wanted: Any, depth: int) -> tuple[Any, int]:
    if kind == BINARY == wanted:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        return data[at : at + length], at + length
    if kind == _STRUCT and isinstance(wanted, Mapping):
        return _struct(data, at, wanted, depth + 1)
    if kind != _LIST or not isinstance(wanted, tuple):
        raise ValueError("one of its fields has another type")
    count, kind, at = _list_head(data, at)
    if kind != _STRUCT and count:
        raise ValueError("one of its lists has elements of another type")
    structs: list[Struct] = []
    for _ in range(count):
        one, at = _struct(data, at, wanted[0], depth + 1)
        structs.append(one)
    return structs, at


def _skipped(data: bytes, at: int, kind: int, depth: int) -> int:
    if kind == BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _struct(data, at, {}, depth + 1)[1]
    if kind in _WIDTHS:
        return at + _WIDTHS[kind]
    if kind in _NUMBERS:
        return _varint(data, at)[1]
    if kind not in (_LIST, _SET) or depth > _DEPTH_MAX:
        raise ValueError("one of its fields has an unknown type")
    count, kind, at = _list_head(data, at)
    for _ in range(count):
        # Unlike in a struct, a boolean in a list takes a byte.
        at = at + 1 if kind in (_TRUE, _FALSE) else _skipped(data, at, kind, depth + 1)
    return at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    if count > _LIST_MAX:
        raise ValueError("one of its lists is too long")
    return count, kind, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    return (byte, at + 1) if byte < 128 else _longer(data, at + 1, byte)


def _longer(data: bytes, at: int, first: int) -> tuple[int, int]:
    """Read the rest of a number whose first byte announces more bytes."""
    number = first & 127
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("one of its numbers is too large")


MAGIC: Final = b"PAR1"
DICTIONARY_PAGE: Final = 2
PLAIN: Final = 0
PLAIN_DICTIONARY: Final = 2
RLE_DICTIONARY: Final = 8
DELTA_LENGTH_BYTE_ARRAY: Final = 6
INT64: Final = 2
BYTE_ARRAY: Final = 6
_REPEATED: Final = 2

_ELEMENT: Final[Shape] = {1: I32, 3: I32, 4: BINARY, 5: I32}
_COLUMN: Final[Shape] = {1: I32, 5: I64, 7: I64, 9: I64, 11: I64}
_GROUP: Final[Shape] = {1: ({3: _COLUMN},), 3: I64}
_FOOTER: Final[Shape] = {2: (_ELEMENT,), 3: I64, 4: (_GROUP,), 5: ({1: BINARY, 2: BINARY},)}
# By kind of page: the field of its own header, then the fields of the count and the encoding in
# that header.
_OWN: Final = {0: (5, 1, 2), DICTIONARY_PAGE: (7, 1, 2), 3: (8, 1, 4)}
_COUNT_AND_ENCODING: Final[Shape] = {1: I32, 2: I32}
_PAGE: Final[Shape] = {
    1: I32,
    2: I32,
    3: I32,
    5: _COUNT_AND_ENCODING,
    7: _COUNT_AND_ENCODING,
    8: {1: I32, 4: I32},
}

_REMEMBERED_BYTES_MAX: Final = 16 * 1024
_PAGES_MIN: Final = 64
# On average, beyond the first pages. Writers make pages of a megabyte.
_PAGE_BYTES_MIN: Final = 512


class Page(NamedTuple):
    """A page: its kind, encoding, number of values, and bytes as stored and as decompressed."""

    kind: int
    encoding: int
    values: int
    stored_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column of one row group, with its pages in the bytes ``[start, limit)``."""

    values: int
    start: int
    limit: int


@dataclass(frozen=True, slots=True)
class SchemaLeaf:
    """A column of the schema. It is not flat if it is nested or repeated."""

    name: str
    type: int
    is_flat: bool


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file. Each of its row groups has a number of rows and columns."""

    rows: int
    leaves: Sequence[SchemaLeaf]
    groups: Sequence[tuple[int, Sequence[ColumnChunk]]]
    key_values: Mapping[bytes, bytes]


def footer_bytes(end: bytes) -> int:
    """Return the size of the footer, as the last 8 bytes of a file state it."""
    return int.from_bytes(end[-8:-4], "little") + 8


def read_footer(data: bytes) -> Footer:
    """Read the footer of a file, from the file or its last bytes.

    Raises:
        ValueError: the bytes do not end with a footer.
    """
    start = len(data) - footer_bytes(data)
    if start < 0 or data[-4:] != MAGIC:
        raise ValueError("it is not a complete Parquet file")
    end = data[start:]
    return _remembered(end) if len(end) <= _REMEMBERED_BYTES_MAX else _footer_in(end)


def _footer_in(end: bytes) -> Footer:
    found, _ = read_struct(end, 0, _FOOTER)
    groups = [
        (_number(group, 3), [_column(one.get(3, {})) for one in group.get(1, ())])
        for group in found.get(4, ())
    ]
    pairs = {one.get(1, b""): one.get(2, b"") for one in found.get(5, ())}
    return Footer(_number(found, 3), _leaves(found.get(2, ())), groups, pairs)


# A reader decodes an object's link and its records in turn, with the same footer.
_remembered = lru_cache(maxsize=64)(_footer_in)


def pages_of(data: bytes, column: ColumnChunk) -> Iterator[Page]:
    """Yield the pages of a column.

    Raises:
        ValueError: the pages contradict the footer.
    """
    at, limit, values = column.start, column.limit, column.values
    if not 0 <= at <= limit <= len(data):
        raise ValueError("a column is outside the file")
    left = _PAGES_MIN + (limit - at) // _PAGE_BYTES_MIN
    while values > 0:
        if not left:
            raise ValueError("a column has far too many pages")
        found, at = read_struct(data, at, _PAGE)
        page = _page(found)
        at += page.stored_bytes
        if at > limit:
            raise ValueError("a page is larger than its column")
        if page.kind != DICTIONARY_PAGE:
            values -= page.values
        left -= 1
        yield page
    if values:
        raise ValueError("a column's pages have more values than the column")


def _page(found: Struct) -> Page:
    own = _OWN.get(found.get(1, -1))
    if own is None:
        raise ValueError("a page has an unknown type")
    field, count, encoding = own
    header = found.get(field, {})
    return Page(
        found[1],
        _number(header, encoding),
        _number(header, count),
        _number(found, 3),
        _number(found, 2),
    )


def _column(found: Struct) -> ColumnChunk:
    start = _number(found, 9)
    # The same rule as Arrow's: a dictionary precedes the data pages, or the column has none.
    if 0 < found.get(11, 0) < start:
        start = found[11]
    return ColumnChunk(_number(found, 5), start, start + _number(found, 7))


def _leaves(schema: Sequence[Struct]) -> list[SchemaLeaf]:
    """Return the columns of a schema, given as its tree in depth-first order."""
    leaves: list[SchemaLeaf] = []
    name, within = "", 0
    for element in schema[1:]:
        is_top = not within
        if is_top:
            name = element.get(4, b"").decode()
        else:
            within -= 1
        if children := element.get(5, 0):
            within += _number(element, 5)
        else:
            is_flat = is_top and element.get(3) != _REPEATED
            leaves.append(SchemaLeaf(name, _number(element, 1), is_flat))
        if children and 1 in element:
            raise ValueError("a column has both a type and nested columns")
    return leaves


def _number(found: Struct, field: int) -> int:
    number: Any = found.get(field, -1)
    if number < 0:
        raise ValueError("a number is missing or negative")
    return int(number)
