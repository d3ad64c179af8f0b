"""Open parts: their bytes are read and checked as a whole, and rows are decoded on demand.

The bytes of a part are small compared with its rows. If many parts are open at once, the bytes are
kept in unnamed files, whose pages the system can evict from memory.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.core.clock import Clock
from tidelog.core.temporary import temporary_files
from tidelog.errors import CorruptionError
from tidelog.persist.format.bounds import OPEN, Box, Interval, box_of_group, overlaps, scalar_of
from tidelog.persist.format.part import (
    ARRAY_BYTES_MAX,
    Part,
    at_commit,
    check_bytes,
    decode_part,
    longest_word,
)
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, fitted
from tidelog.persist.read.reader import PartBytes
from tidelog.store.port import Store

T = TypeVar("T")

Opener = Callable[[], pq.ParquetFile]

LARGE_ROWS: Final = 8_192
# A writer of Parquet ends a dictionary at this size, and writes later values as plain text, which
# Arrow decodes slowly to a dictionary.
DICTIONARY_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: the number of its rows, and the bounds of its columns.

    Columns without known bounds are not in ``bounds``. A column with only nulls has (None, None).
    """

    rows: int
    bounds: Box = field(default_factory=dict)

    def reaches(self, box: Box) -> bool:
        """Return True if the group can hold rows within the box."""
        return all(overlaps(self.bounds.get(n, OPEN), wanted) for n, wanted in box.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPart:
    """A part whose bytes were read and checked.

    Shape: ``groups`` have the bounds of the columns by which a reader selects groups; an inline
        part is one group. ``packed``: see `PartOpener`.
    """

    part: Part
    schema: ShardSchema
    source: Decoders | pa.Table
    groups: list[Group]
    packed: frozenset[str] = frozenset()

    def read(
        self, groups: Sequence[int], names: Sequence[str], *, as_of: int, use_threads: bool = False
    ) -> pa.Table:
        """Return the named columns at times up to ``as_of``; some columns are dictionary-encoded.

        ``use_threads`` is for a caller that decodes one part at a time: Arrow then decodes columns
        in parallel.

        Raises:
            CorruptionError: the part cannot be decoded.
        """
        is_later = self.part.time_max > as_of
        wanted = [*names, TIME] if is_later and TIME not in names else list(names)
        table = self._decode(groups, wanted, use_threads)
        if is_later:
            table = table.filter(pc.less_equal(table.column(TIME), scalar_of(as_of, pa.int64())))
        return table.select(list(names))

    def _decode(self, groups: Sequence[int], names: Sequence[str], use_threads: bool) -> pa.Table:
        updates = self.schema.updates
        own = self.schema.of_part(self.part.schema_id).updates
        # A table without columns has no row count, so decode one column.
        stored = set(own.names)
        there = [name for name in names if name in stored] or [DIFF]
        schema = pa.schema([own.field(name) for name in there])
        if isinstance(self.source, pa.Table):
            some = self.source if groups else self.source.slice(0, 0)
            return fitted(some, names, updates)
        try:
            found = self.source.read(groups, there, use_threads=use_threads)
            found = cast_but_dictionaries(_unpacked(found.select(there), self.packed), schema)
            return fitted(at_commit(self.part, found), names, updates)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise CorruptionError(
                "a part cannot be decoded: restore the object", path=self.part.path
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOpener:
    """Opens parts, a few at once.

    ``names`` are the columns whose bounds are loaded to select row groups. Text columns in
    ``packed`` keep a part's dictionary encoding, for a caller that writes Parquet again.
    """

    store: Store
    clock: Clock
    schema: ShardSchema
    names: frozenset[str] = frozenset()
    packed: frozenset[str] = frozenset()
    reads: int = 8

    async def open(self, parts: Sequence[Part], *, in_files: bool = False) -> list[OpenPart]:
        """Read and check the bytes of parts; ``in_files`` keeps the bytes outside process memory.

        Raises:
            PartMissing: an object is missing. CorruptionError: the bytes differ from those written.
            LocationError: the store failed.
        """
        return await self._bytes.load_all(parts, partial(self._checked, in_files=in_files))

    async def opened_by(self, parts: Sequence[Part], work: Callable[[OpenPart], T]) -> list[T]:
        """Return the results of ``work`` on open parts, in the thread that checks their bytes.

        See `open` for the errors.
        """
        return await self._bytes.load_all(
            parts, lambda part, data: work(self._checked(part, data, in_files=False))
        )

    async def bytes_of(self, part: Part) -> bytes:
        """Read and check the bytes of a part; see `open`."""

        def checked(part: Part, data: bytes) -> bytes:
            check_bytes(part, data)
            return data

        return await self._bytes.load(part, checked)

    @property
    def _bytes(self) -> PartBytes:
        return PartBytes(store=self.store, clock=self.clock, reads=self.reads)

    def _checked(self, part: Part, data: bytes, *, in_files: bool) -> OpenPart:
        if part.path is None:
            table = decode_part(part, data, self.schema)
            groups = [Group(table.num_rows)]
            return OpenPart(part=part, schema=self.schema, source=table, groups=groups)
        check_bytes(part, data)
        return self.opened(part, data, in_files=in_files)

    def opened(self, part: Part, data: bytes, *, in_files: bool) -> OpenPart:
        """Return an open part from its bytes, or from a file with the same rows.

        Raises:
            CorruptionError: the bytes are not Parquet.
        """
        try:
            buffer = _in_file(data) if in_files else pa.py_buffer(data)
            file = pq.ParquetFile(pa.BufferReader(buffer))
            metadata = file.metadata
            # Arrow decodes text faster to a dictionary, and that to text, than to text at once.
            coded = _with_dictionary(metadata, self.schema.data)

            def another() -> pq.ParquetFile:
                source = pa.BufferReader(buffer)
                return pq.ParquetFile(source, metadata=metadata, read_dictionary=coded)

            decoders = Decoders(another() if coded else file, another)
            groups = list(_groups(metadata, self.names))
        except (pa.ArrowException, ValueError, OSError) as error:
            raise CorruptionError(
                "a part cannot be decoded: restore the object", path=part.path
            ) from error
        return OpenPart(
            part=part, schema=self.schema, source=decoders, groups=groups, packed=self.packed
        )


def _in_file(data: bytes) -> pa.Buffer:
    with temporary_files(), tempfile.NamedTemporaryFile(prefix="tidelog-part-") as file:
        file.write(data)
        file.flush()
        # The mapping stays valid after the file is deleted.
        return pa.memory_map(file.name).read_buffer()


def _with_dictionary(metadata: pq.FileMetaData, schema: pa.Schema) -> list[str]:
    """Return the text columns of a large part that have a dictionary in the first row group."""
    if metadata.num_rows < LARGE_ROWS:
        return []
    group = metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    texts = {field.name for field in schema if pa.types.is_string(field.type)}
    # A name with a dot can also be the path of a nested field, which Arrow cannot decode so.
    texts = {name for name in texts if "." not in name}
    return [
        column.path_in_schema
        for column in columns
        if column.path_in_schema in texts
        and column.has_dictionary_page
        and column.total_uncompressed_size < DICTIONARY_BYTES_MAX
    ]


def _unpacked(table: pa.Table, packed: frozenset[str]) -> pa.Table:
    """Return a table whose columns have no dictionaries, except those in ``packed``."""
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_dictionary(column.type) and name not in packed:
            table = table.set_column(place, name, _words_of(column))
    return table


def _words_of(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    found: list[pa.Array[Any]] = []
    chunks: list[Any] = column.chunks
    for chunk in chunks:
        rows = max(1, ARRAY_BYTES_MAX // max(1, longest_word(chunk)))
        starts = range(0, len(chunk), rows)
        found += [chunk.slice(start, rows).dictionary_decode() for start in starts]
    return pa.chunked_array(found, column.type.value_type)


def cast_but_dictionaries(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to a schema; text with a dictionary keeps it."""
    if table.schema.equals(schema):
        return table
    fields = [
        field.with_type(given.type) if pa.types.is_dictionary(given.type) else field
        for field, given in zip(schema, table.schema, strict=True)
    ]
    return table.cast(pa.schema(fields))


def _groups(metadata: pq.FileMetaData, names: frozenset[str]) -> Iterator[Group]:
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        # A box costs as much as the rest of the open of a small part.
        yield Group(group.num_rows, box_of_group(group, names) if names else {})


def is_in_order(groups: Sequence[Group], name: str) -> bool:
    """Return True if row groups are known to be sorted by a column, with nulls last."""
    bounds: list[Interval] = [group.bounds.get(name, OPEN) for group in groups]
    known = all(b[1] is not None and a[0] is not None for b, a in pairwise(bounds))
    return known and all(before[1] <= after[0] for before, after in pairwise(bounds))


class Decoders:
    """Decodes row groups of one file, on any thread.

    Only one thread at a time may use Arrow's reader of a file. Creating a reader takes 0.1 ms.
    """

    def __init__(self, first: pq.ParquetFile, another: Opener) -> None:
        self._idle = deque([first])
        self._another = another

    def read(
        self, groups: Sequence[int], columns: Sequence[str], *, use_threads: bool = False
    ) -> pa.Table:
        """Return columns of row groups; with ``use_threads``, Arrow's threads decode them too.

        Raises:
            the errors of Arrow for a file that it cannot decode.
        """
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._another()
        try:
            return file.read_row_groups(
                list(groups), columns=list(columns), use_threads=use_threads
            )
        finally:
            self._idle.append(file)
