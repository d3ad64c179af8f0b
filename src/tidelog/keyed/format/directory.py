"""The key directory of a part: which keys it has, and where their records are. Pure.

One small object tells whether a key is there, where its rows are, how many, and between which
sequences; in its footer it has where pages and row groups of the part lie, so that a part is read
without a request for what it says of itself.

Shape: Parquet of `DIRECTORY`, sorted by key, a row group for each `GROUP_KEYS` keys, or fewer that
    have `GROUP_BYTES`. Its metadata has `HEAD`: base64 of a msgpack array, see `_StoredHead`.
Invariants: the rows of keys follow each other from 0 on, and are all rows of the part.
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

from tidelog.keyed.format.layout import (
    PartLayout,
    Span,
    decode_layout,
    encode_layout,
    pack,
    unpack,
)
from tidelog.keyed.format.part import KeyRows
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
GROUP_BYTES: Final = 256 * 1024  # Of keys: who merges runs holds some groups of each.
HEAD: Final = "tidelog.keys"
FORMAT: Final = 2  # In 1, all columns of a part had pages of as many rows.


class _StoredHead(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A head as it is stored; lists of numbers are packed."""

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
    """What a directory says of its part, and of its own row groups.

    Shape: ``path`` and ``num_bytes`` are those of the part, at whose end are ``footer_bytes`` of a
        footer. ``first_keys`` are of each row group of the directory a key up to which those before
        it go, and from which its own begin; ``group_places`` where each begins, and all end.
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
        """About how much memory it takes."""
        return self.layout.nbytes + sum(map(len, self.first_keys)) + 64 * self.groups

    def group_of(self, key: bytes) -> int:
        """Return the row group of the directory that has a key, if any has it."""
        return max(bisect_right(self.first_keys, key) - 1, 0)

    def group_span(self, group: int) -> Span:
        """Return the bytes of a row group of the directory."""
        return Span(int(self.group_places[group]), int(self.group_places[group + 1]))


class KeyPiece:
    """Some keys that follow each other, with where their rows are."""

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
        """How much memory it takes."""
        return int(self.table.nbytes)

    @cached_property
    def _bytes(self) -> tuple[memoryview, memoryview]:
        _, offsets, data = self._keys.buffers()
        places = memoryview(offsets).cast("B").cast("i")
        return places[self._keys.offset :], memoryview(data or b"")

    def key(self, index: int) -> bytes:
        """Return a key by its number."""
        places, data = self._bytes
        return bytes(data[places[index] : places[index + 1]])

    def index_of(self, key: bytes) -> int:
        """Return how many keys are before a key."""
        return bisect_left(range(len(self)), key, key=self.key)

    def find(self, key: bytes) -> KeyRows | None:
        """Return where a key's rows are; None if it has none."""
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
        """Return the first row of the keys from a key on; one after the last, if there are none."""
        index = self.index_of(key)
        if index < len(self):
            return int(self.first_rows[index])
        return int(self.first_rows[-1] + self.rows[-1]) if index else 0


class DirectoryWriter:
    """Writes a directory as keys come, in order."""

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
        """Add keys that come after all before."""
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
        """Return the directory's bytes, and how many of them at its end are its footer."""
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
        # Readers of other makers take metadata for text.
        told = base64.b64encode(msgspec.msgpack.encode(head)).decode()
        self._writer.add_key_value_metadata({HEAD: told})
        self._writer.close()
        data = self._sink.getvalue()
        return data, footer_bytes(data)

    def _write_groups(self, *, is_last: bool) -> None:
        """Write the row groups that are full, and, at the end, the last one."""
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
    """Cut a table of keys into as many at once as a row group has; the last may have none."""
    ends = np.cumsum(lengths_of(one_chunk(keys.column(KEY))))
    found, at, before = list[pa.Table](), 0, 0
    while True:
        # As many as have the bytes, the one with which they have among them.
        limit = min(int(np.searchsorted(ends, before + GROUP_BYTES)) + 1, at + GROUP_KEYS)
        if limit > len(ends):
            return [*found, keys.slice(at)]
        found.append(keys.slice(at, limit - at))
        at, before = limit, int(ends[limit - 1])


def _separator(before: bytes, key: bytes) -> bytes:
    """Return the shortest key that is greater than the one before, and not greater than this."""
    for place, (one, other) in enumerate(zip(before, key, strict=False)):
        if one != other:
            return key[: place + 1]
    return key[: len(before) + 1]


def read_head(metadata: pq.FileMetaData) -> DirectoryHead:
    """Return what a directory's footer says of its part.

    Raises:
        ValueError: it is no directory, or one that a later version wrote.
    """
    stored = (metadata.metadata or {}).get(HEAD.encode())
    if stored is None:
        raise ValueError("it is no key directory")
    try:
        head = _HEADS.decode(base64.b64decode(stored, validate=True))
    except (msgspec.MsgspecError, binascii.Error) as error:
        raise ValueError("its metadata is damaged") from error
    if not 1 <= head.format <= FORMAT:
        raise ValueError(f"it is of format {head.format}, which a later version of tidelog wrote")
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
    """Return what a whole directory says. Raises: what Arrow raises of others; ValueError."""
    file = pq.ParquetFile(pa.BufferReader(data))
    return read_head(file.metadata), KeyPiece(fitted(file.read(use_threads=False)))


def fitted(table: pa.Table) -> pa.Table:
    """Return a table that was read as one of `DIRECTORY`. Raises: ValueError: it is none."""
    if table.column_names != DIRECTORY.names or table.schema.types != DIRECTORY.types:
        raise ValueError("it has other columns than a key directory")
    return pa.Table.from_arrays(table.columns, schema=DIRECTORY).combine_chunks()
