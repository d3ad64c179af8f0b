"""The key directory of a part: its keys, and the places of their records. Pure.

This small object shows whether a part has a key, and the key's rows, their number and their
sequences. Its footer also has the places of the part's pages and row groups. A reader of the part
therefore needs no request for the part's own footer.

Shape: Parquet of `DIRECTORY`, sorted by key, with a row group for each `GROUP_KEYS` keys, or for
    fewer keys of `GROUP_BYTES`. Its metadata has `HEAD`: base64 of a msgpack array, see
    `_StoredHead`.
Invariants: the rows of the keys are contiguous from 0, and cover all rows of the part.
Source: rfc-0001, "Count API"; design page 5, "Key directory".
"""

from __future__ import annotations

import base64
import binascii
import io
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tidelog.errors import UsageError
from tidelog.keyed.format.part import (
    KeyRows,
    PartLayout,
    Span,
    decode_layout,
    encode_layout,
    pack,
    unpack,
)
from tidelog.keyed.format.records import KEY, int64_of, lengths_of, one_chunk
from tidelog.wal.format.parquet_meta import footer_bytes

FIRST_ROW: Final = "first_row"
ROWS: Final = "rows"
MIN_SEQUENCE: Final = "min_sequence"
MAX_SEQUENCE: Final = "max_sequence"
COUNTS: Final = (FIRST_ROW, ROWS, MIN_SEQUENCE, MAX_SEQUENCE)
DIRECTORY: Final = pa.schema(
    [pa.field(KEY, pa.binary(), nullable=False)]
    + [pa.field(name, pa.int64(), nullable=False) for name in COUNTS]
)
GROUP_KEYS: Final = 8_192
# The bytes of keys in a group. A merge of runs holds some groups of each run in memory.
GROUP_BYTES: Final = 256 * 1024
HEAD: Final = "tidelog.keys"
FORMAT: Final = 2  # In format 1, the pages of all columns of a part had the same number of rows.


class _StoredHead(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A head as stored; lists of numbers are packed."""

    format: int
    path: str
    num_bytes: int
    footer_bytes: int
    footer_xxh3: bytes
    layout: list[bytes]
    first_keys: list[bytes]
    group_keys: bytes
    group_places: bytes
    group_xxh3: bytes


_HEADS: Final = msgspec.msgpack.Decoder(_StoredHead)


@dataclass(frozen=True)
class DirectoryHead:
    """The head of a directory: facts about its part and about its own row groups.

    Shape: ``path`` and ``num_bytes`` are those of the part, which ends with a footer of
        ``footer_bytes``. ``first_keys`` has for each row group of the directory a separator:
        greater than the keys of the groups before, and at most the group's first key.
        ``group_places`` has the start of each group, and the end of the last.
    """

    path: str
    num_bytes: int
    footer_bytes: int
    footer_xxh3: bytes
    layout: PartLayout
    first_keys: list[bytes]
    group_places: np.ndarray[Any, np.dtype[np.int64]]
    group_xxh3: np.ndarray[Any, np.dtype[np.uint64]]

    @property
    def groups(self) -> int:
        return len(self.first_keys)

    @property
    def nbytes(self) -> int:
        """The approximate memory in bytes."""
        return self.layout.nbytes + sum(map(len, self.first_keys)) + 64 * self.groups

    def group_of(self, key: bytes) -> int:
        """Return the only row group of the directory that can have a key."""
        return max(bisect_right(self.first_keys, key) - 1, 0)

    def group_span(self, group: int) -> Span:
        """Return the byte range of a row group of the directory."""
        return Span(int(self.group_places[group]), int(self.group_places[group + 1]))


class KeyPiece:
    """Consecutive keys of a directory, with the places of their rows."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._keys: Any = one_chunk(table.column(KEY))
        self.first_rows, self.rows, self.min_sequences, self.max_sequences = (
            int64_of(table.column(name)) for name in COUNTS
        )

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """The memory in bytes."""
        return int(self.table.nbytes)

    @cached_property
    def _bytes(self) -> tuple[memoryview, memoryview]:
        _, offsets, data = self._keys.buffers()
        places = memoryview(offsets).cast("B").cast("i")
        return places[self._keys.offset :], memoryview(data or b"")

    def key(self, index: int) -> bytes:
        """Return a key by its index."""
        places, data = self._bytes
        return bytes(data[places[index] : places[index + 1]])

    def index_of(self, key: bytes) -> int:
        """Return the number of keys before a key."""
        return bisect_left(range(len(self)), key, key=self.key)

    def find(self, key: bytes) -> KeyRows | None:
        """Return the place of a key's rows; None if the key is missing."""
        index = self.index_of(key)
        if index == len(self) or self.key(index) != key:
            return None
        return KeyRows(
            int(self.first_rows[index]),
            int(self.rows[index]),
            int(self.min_sequences[index]),
            int(self.max_sequences[index]),
        )

    def first_row_from(self, key: bytes) -> int:
        """Return the first row at or after a key; the row after the last if no key follows."""
        index = self.index_of(key)
        if index < len(self):
            return int(self.first_rows[index])
        return int(self.first_rows[-1] + self.rows[-1]) if index else 0


class DirectoryWriter:
    """Writes a directory from keys that arrive in order."""

    def __init__(self) -> None:
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink,
            DIRECTORY,
            compression="zstd",
            use_dictionary=False,
            column_encoding={KEY: "DELTA_BYTE_ARRAY"}
            | dict.fromkeys(COUNTS, "DELTA_BINARY_PACKED"),
            write_statistics=[KEY],
            write_page_checksum=True,
            store_schema=False,
            sorting_columns=[pq.SortingColumn(0)],
        )
        self._waiting: list[pa.Table] = []
        self._waiting_keys = self._waiting_bytes = 0
        self._last_key = b""
        self._first_keys: list[bytes] = []
        self._group_keys: list[int] = []
        self._places = [self._sink.tell()]
        self._sums: list[int] = []

    def add(self, keys: pa.Table) -> None:
        """Add keys, all of them greater than those before."""
        if not keys.num_rows:
            return
        self._waiting.append(keys)
        self._waiting_keys += keys.num_rows
        self._waiting_bytes += int(keys.column(KEY).nbytes)
        if self._waiting_keys >= GROUP_KEYS or self._waiting_bytes >= GROUP_BYTES:
            self._write_groups(is_last=False)

    def finish(
        self, *, path: str, num_bytes: int, part_footer: bytes, layout: PartLayout
    ) -> tuple[bytes, int]:
        """Return the directory's bytes, and the size of the footer at its end."""
        self._write_groups(is_last=True)
        head = _StoredHead(
            format=FORMAT,
            path=path,
            num_bytes=num_bytes,
            footer_bytes=len(part_footer),
            footer_xxh3=xxhash.xxh3_128_digest(part_footer),
            layout=encode_layout(layout),
            first_keys=self._first_keys,
            group_keys=pack(np.array(self._group_keys)),
            group_places=pack(np.diff(self._places, prepend=0)),
            group_xxh3=pack(np.array(self._sums, np.uint64).view(np.int64)),
        )
        # Parquet readers of other languages treat metadata as text.
        text = base64.b64encode(msgspec.msgpack.encode(head)).decode()
        self._writer.add_key_value_metadata({HEAD: text})
        self._writer.close()
        data = self._sink.getvalue()
        return data, footer_bytes(data)

    def _write_groups(self, *, is_last: bool) -> None:
        """Write the row groups that are full, and at the end also the last one."""
        waiting = pa.concat_tables([DIRECTORY.empty_table(), *self._waiting]).combine_chunks()
        *full, rest = groups_of(waiting)
        for group in full:
            self._write(group)
        if is_last and rest.num_rows:
            self._write(rest)
        self._waiting, self._waiting_keys = [rest], rest.num_rows
        self._waiting_bytes = int(rest.column(KEY).nbytes)

    def _write(self, keys: pa.Table) -> None:
        ends = one_chunk(keys.column(KEY))
        self._first_keys.append(_separator(self._last_key, ends[0].as_py()))
        self._last_key = ends[len(ends) - 1].as_py()
        self._group_keys.append(keys.num_rows)
        self._writer.write_table(keys, row_group_size=keys.num_rows)
        self._places.append(self._sink.tell())
        with self._sink.getbuffer() as written:
            self._sums.append(xxhash.xxh3_64_intdigest(written[self._places[-2] :]))


def groups_of(keys: pa.Table) -> list[pa.Table]:
    """Divide a table of keys into row groups; the last one may be empty."""
    ends = np.cumsum(lengths_of(one_chunk(keys.column(KEY))))
    groups, at, before = list[pa.Table](), 0, 0
    while True:
        # The group ends with the key that reaches the byte limit.
        limit = min(int(np.searchsorted(ends, before + GROUP_BYTES)) + 1, at + GROUP_KEYS)
        if limit > len(ends):
            return [*groups, keys.slice(at)]
        groups.append(keys.slice(at, limit - at))
        at, before = limit, int(ends[limit - 1])


def _separator(before: bytes, key: bytes) -> bytes:
    """Return the shortest key that is greater than ``before`` and at most ``key``."""
    for place, (byte, other) in enumerate(zip(before, key, strict=False)):
        if byte != other:
            return key[: place + 1]
    return key[: len(before) + 1]


def read_head(metadata: pq.FileMetaData) -> DirectoryHead:
    """Decode the head in a directory's footer.

    Raises:
        ValueError: it is not a directory. UsageError: a later version wrote it.
    """
    stored = (metadata.metadata or {}).get(HEAD.encode())
    if stored is None:
        raise ValueError("it is not a key directory")
    try:
        head = _HEADS.decode(base64.b64decode(stored, validate=True))
    except (msgspec.MsgspecError, binascii.Error) as error:
        raise ValueError("its metadata is damaged") from error
    if head.format > FORMAT:
        raise UsageError(
            "a newer tidelog wrote this directory of keys: upgrade tidelog to read it",
            path=head.path,
            format=head.format,
        )
    if head.format < 1:
        raise ValueError(f"its format is {head.format}")
    return DirectoryHead(
        path=head.path,
        num_bytes=head.num_bytes,
        footer_bytes=head.footer_bytes,
        footer_xxh3=head.footer_xxh3,
        layout=decode_layout(head.layout),
        first_keys=head.first_keys,
        group_places=np.cumsum(unpack(head.group_places)),
        group_xxh3=unpack(head.group_xxh3).view(np.uint64),
    )


def decode_directory(data: bytes) -> tuple[DirectoryHead, KeyPiece]:
    """Decode a whole directory. Raises: Arrow's errors for other bytes; ValueError."""
    file = pq.ParquetFile(pa.BufferReader(data))
    return read_head(file.metadata), KeyPiece(fitted(file.read(use_threads=False)))


def fitted(table: pa.Table) -> pa.Table:
    """Return a table read, in the schema `DIRECTORY`. Raises: ValueError: other columns."""
    if table.column_names != DIRECTORY.names or table.schema.types != DIRECTORY.types:
        raise ValueError("its columns are not those of a key directory")
    return pa.Table.from_arrays(table.columns, schema=DIRECTORY).combine_chunks()
