"""Parquet files written byte by byte, so that they can have contents that no writer produces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.wal.format.parquet_meta import BINARY, BYTE_ARRAY, I32, I64, INT64, MAGIC

STRUCT = 12
LIST = 9
UNSIGNED = 14  # Parquet's number for unsigned integers of 64 bits.
# For each field a kind and a value. The value of a list is the kind of its items, and the items.
Fields = Mapping[int, tuple[int, Any]]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def zigzag(number: int) -> bytes:
    return varint(number * 2 if number >= 0 else -number * 2 - 1)


def thrift(fields: Fields) -> bytes:
    """Encode a struct in Thrift's compact protocol."""
    found, last = b"", 0
    for number, (kind, value) in sorted(fields.items()):
        found += bytes([(number - last) << 4 | kind]) + _value(kind, value)
        last = number
    return found + b"\0"


def _value(kind: int, value: Any) -> bytes:
    match kind:
        case 4 | 5 | 6:
            return zigzag(value)
        case 8:
            return varint(len(value)) + bytes(value)
        case 9 | 10:
            item, items = value
            head = bytes([len(items) << 4 | item]) if len(items) < 15 else None
            head = head or bytes([0xF0 | item]) + varint(len(items))
            return head + b"".join(_value(item, one) for one in items)
        case 12:
            return thrift(value)
        case _:
            return bytes(value)  # All other kinds have their bytes as the value.


@dataclass(frozen=True, kw_only=True)
class PageBytes:
    """A page: the claims of its header, and its body."""

    body: bytes
    values: int
    kind: int = 0
    encoding: int = 0
    size: int | None = None
    more: Fields = field(default_factory=dict)

    def encode(self) -> bytes:
        own = {0: 5, 2: 7, 3: 8}.get(self.kind, 5)
        fields: dict[int, tuple[int, Any]] = {
            1: (I32, self.kind),
            2: (I32, len(self.body) if self.size is None else self.size),
            3: (I32, len(self.body)),
            own: (
                STRUCT,
                {
                    1: (I32, self.values),
                    2: (I32, self.encoding),
                    **({} if self.kind == 2 else {3: (I32, 3), 4: (I32, 3)}),
                    **self.more,
                },
            ),
        }
        return thrift(fields) + self.body


@dataclass(frozen=True, kw_only=True)
class ColumnBytes:
    """A required column of the file, and its pages."""

    name: str
    pages: Sequence[PageBytes]
    type: int = BYTE_ARRAY
    values: int | None = None
    codec: int = 0
    repetition: int = 0
    converted: int | None = None
    hides_dictionary: bool = False


def parquet_bytes(
    columns: Sequence[ColumnBytes],
    *,
    rows: int,
    group_rows: int | None = None,
    key_values: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return a file with one row group, whose metadata may be false."""
    data, chunks = MAGIC, []
    for column in columns:
        start = len(data)
        data += b"".join(page.encode() for page in column.pages)
        meta: dict[int, tuple[int, Any]] = {
            1: (I32, column.type),
            2: (LIST, (I32, [0])),
            3: (LIST, (BINARY, [column.name.encode()])),
            4: (I32, column.codec),
            5: (I64, rows if column.values is None else column.values),
            6: (I64, len(data) - start),
            7: (I64, len(data) - start),
            9: (I64, start),
        }
        if column.pages[0].kind == 2 and not column.hides_dictionary:
            meta[9] = (I64, start + len(column.pages[0].encode()))
            meta[11] = (I64, start)
        chunks.append({2: (I64, 0), 3: (STRUCT, meta)})
    schema: list[Fields] = [{4: (BINARY, b"schema"), 5: (I32, len(columns))}]
    schema += [
        {
            1: (I32, one.type),
            3: (I32, one.repetition),
            4: (BINARY, one.name.encode()),
            **({} if one.converted is None else {6: (I32, one.converted)}),
        }
        for one in columns
    ]
    group = {
        1: (LIST, (STRUCT, chunks)),
        2: (I64, len(data)),
        3: (I64, rows if group_rows is None else group_rows),
    }
    footer = thrift(
        {
            1: (I32, 1),
            2: (LIST, (STRUCT, schema)),
            3: (I64, rows),
            4: (LIST, (STRUCT, [group])),
            5: (
                LIST,
                (
                    STRUCT,
                    [
                        {1: (BINARY, key.encode()), 2: (BINARY, value)}
                        for key, value in (key_values or {}).items()
                    ],
                ),
            ),
        }
    )
    return data + footer + len(footer).to_bytes(4, "little") + MAGIC


def plain(values: Sequence[bytes]) -> bytes:
    """Return byte arrays in the encoding of a plain page."""
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def integers(values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def places(rows: int) -> list[ColumnBytes]:
    """Return the columns of positions and times of a wal3 fragment, both counted from 1."""
    page = PageBytes(body=integers(range(1, rows + 1)), values=rows)
    return [
        ColumnBytes(name=name, type=INT64, pages=[page], converted=UNSIGNED)
        for name in ("offset", "timestamp_us")
    ]


def run_of_first(rows: int) -> bytes:
    """Return an encoded run: all rows have the first value of a dictionary."""
    return bytes([1]) + varint(rows << 1) + b"\0"
