"""Avro: from the blocks of a range to Arrow columns. Pure.

fastavro reads some rows at a time, so only these are Python objects. Only whole blocks count: if a
row cannot be read, the place of the next one is unknown, and the rows before it may be wrong too.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.avro.container import (
    ROWS_MAX,
    AvroBlock,
    blocks_in,
    encode_long,
    unpack_blocks,
)
from tidelog.collection.formats.avro.schema import (
    SEVERAL,
    AvroSchema,
    AvroType,
    require_fastavro,
    settled_branches,
)
from tidelog.collection.formats.avro.values import as_json_texts, first_valid
from tidelog.collection.formats.casts import cast_values
from tidelog.collection.formats.lines import Bools, Int64s
from tidelog.collection.formats.names import match_names
from tidelog.collection.formats.parquet import (
    PackedGroups,
    renamed,
    wanted_columns,
    with_sound_text,
)
from tidelog.collection.formats.records import Misfit, Records, listed, row_texts
from tidelog.collection.formats.types import is_json, sql_type_of
from tidelog.collection.formats.unknown import unknown_paths
from tidelog.errors import CorruptionError, TidelogError

Array: TypeAlias = "pa.Array[Any]"
_ROWS_AT_ONCE: Final = 16_384
_BYTES_AT_ONCE: Final = 1024 * 1024  # Each byte may become a Python object.
_NO_ROWS: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Column:
    """A field of the rows that is decoded: its place, its type, and the wanted column, if any."""

    name: str
    place: int
    kind: AvroType
    field: pa.Field[Any] | None

    def settled(self, rows: Any) -> tuple[Array, Bools | None]:
        """Return the column of some rows, and a mask of those that do not fit, or None."""
        array, wanted = rows.field(self.place), self.field
        if wanted is not None and self.kind.branches:
            return _fit_union(array, self.kind.branches, wanted)
        found = self.kind.settled(array)
        if wanted is not None and is_json(wanted) and not pa.types.is_string(found.type):
            found = as_json_texts(found)
        return found, None


def _fit_union(
    array: Array, branches: Sequence[AvroType], wanted: pa.Field[Any]
) -> tuple[Array, Bools]:
    """Return the values of a union of several types as the wanted type."""
    values: list[Array] = []
    unfit = np.zeros(len(array), np.bool_)
    for found in settled_branches(branches, array):
        if is_json(wanted):
            values.append(as_json_texts(found))
            continue
        cast, misfits = cast_values(found, wanted.type)
        values.append(cast)
        unfit |= misfits
    return first_valid(values), unfit


@dataclass(slots=True)
class AvroDecoder:
    """The decoded rows of one schema so far, with their addresses, and the bad ones."""

    schema: AvroSchema
    wanted: pa.Schema
    folds_case: bool = False
    misfits: list[Misfit] = field(default_factory=list)
    _chunks: list[list[Array]] = field(default_factory=list)
    _addresses: list[Int64s] = field(default_factory=list)
    _unfit: list[Misfit] = field(default_factory=list)
    _own: Sequence[str] = ()
    _columns: Sequence[_Column] = ()

    def __post_init__(self) -> None:
        names = self.schema.names
        self._own = match_names(names, self.wanted.names) if self.folds_case else names
        known = {one.name: one for one in self.wanted}
        # If two fields have one name, but for the case of letters, the first counts.
        places = dict(reversed([*zip(self._own, range(len(names)), strict=True)]))
        shown = [name for name in self.wanted.names if name in places] or [*places]
        self._columns = [
            _Column(name, places[name], self.schema.types[places[name]], known.get(name))
            for name in shown
        ]

    def take(self, arrays: Iterable[Any], addresses: Int64s) -> None:
        """Take arrays of plain rows, which have these addresses: all of them, or none.

        Raises:
            Exception: the rows cannot be read, or Arrow cannot convert them.
        """
        chunks: list[list[Array]] = []
        misfits: list[Misfit] = []
        at = 0
        for rows in arrays:
            found = [one.settled(rows) for one in self._columns]
            chunks.append([array for array, _ in found])
            masks = [bad for _, bad in found if bad is not None]
            if any(bad.any() for bad in masks):
                misfits += self._misfits(rows, [bad for _, bad in found], addresses[at:])
            at += len(rows)
        self._chunks += chunks
        self._addresses.append(addresses)
        self._unfit += misfits

    def _misfits(
        self, rows: Any, masks: Sequence[Bools | None], addresses: Int64s
    ) -> Iterator[Misfit]:
        """Yield the rows with a union whose value does not fit its column."""
        reasons: dict[int, str] = {}
        for one, bad in zip(self._columns, masks, strict=True):
            if bad is not None and one.field is not None:
                why = f"column {one.name!r} does not fit its type {sql_type_of(one.field)}"
                for row in np.flatnonzero(bad).tolist():
                    reasons.setdefault(row, why)
        some = rows.take(pa.array(sorted(reasons)))
        shown = [one.kind.settled(some.field(one.place)) for one in self._columns]
        texts = row_texts(pa.table(shown, names=[one.name for one in self._columns]))
        for row, text in zip(sorted(reasons), listed(texts), strict=True):
            yield Misfit(int(addresses[row]), reasons[row], text)

    def records(self) -> Records:
        """Return all rows. Those of a union whose value does not fit its column are bad."""
        table = with_sound_text(self._table())
        addresses = np.concatenate([_NO_ROWS, *self._addresses])
        if self._unfit:
            kept = ~np.isin(addresses, [one.offset for one in self._unfit])
            table, addresses = table.filter(pa.array(kept)), addresses[kept]
        columns = renamed(self.schema.columns, self._own)
        unknown = unknown_paths(columns, self.wanted) if table.num_rows else []
        spelled = {name: name for name in table.column_names}
        return Records(
            wanted_columns(table, spelled, self.wanted),
            addresses,
            lambda some: row_texts(table.take(some)),
            [*self.misfits, *self._unfit],
            dict.fromkeys(unknown, table.num_rows),
        )

    def _table(self) -> pa.Table:
        nothing = pa.array([], self.schema.raw)
        chunks = self._chunks or [[one.settled(nothing)[0] for one in self._columns]]
        columns = [pa.chunked_array([*some]) for some in zip(*chunks, strict=True)]
        return pa.table(columns, names=[one.name for one in self._columns])


def decode_avro(data: bytes, wanted: pa.Schema, *, base: int, folds_case: bool = False) -> Records:
    """Decode packed blocks; the first one begins at the offset ``base`` of its file.

    A row's offset is its address; see `container.ROW_BITS`. A block that cannot be decoded is one
    bad row.

    Raises:
        CorruptionError: the header cannot be read. UsageError: fastavro is not installed.
    """
    header, blocks = unpack_blocks(data)
    decoder = AvroDecoder(header.schema, wanted, folds_case)
    for block in blocks_in(blocks, base, header.marker):
        try:
            count, rows = block.rows(header)
            arrays = read_rows(rows, count, decoder.schema)
            decoder.take(arrays, block.address + np.arange(count))
        except CorruptionError as error:
            decoder.misfits.append(_bad_block(block, error.sentence))
        except (TidelogError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - bytes that make a library fail are bad
            decoder.misfits.append(_bad_block(block, type(error).__name__))
    return decoder.records()


def _bad_block(block: AvroBlock, why: str) -> Misfit:
    what = f"the block at byte {block.start:,}"
    return Misfit(block.address, f"{what} cannot be decoded: {why}", f"the rows of {what}")


def read_rows(data: bytes, count: int, schema: AvroSchema) -> Iterator[pa.StructArray]:
    """Yield all rows of a block, with a field for each field of the schema, in plain types.

    Raises:
        CorruptionError: the block has more bytes than the rows.
        Exception: fastavro cannot read the rows.
    """
    raw, read = schema.raw, require_fastavro().schemaless_reader
    # If rows may lack bytes, a number in place of the last zero could claim any number of them.
    is_bounded = count <= _ROWS_AT_ONCE and len(data) <= _BYTES_AT_ONCE and schema.size_min > 0
    if is_bounded:
        rows = _read_block(data, count, schema, read)
        if rows is not None:
            yield cast("pa.StructArray", pa.array(rows, raw))
            return
    stream = io.BytesIO(data)
    for start in range(0, count, _ROWS_AT_ONCE):
        size = min(_ROWS_AT_ONCE, count - start)
        rows = []
        while size - len(rows) >= SEVERAL:
            rows += read(stream, schema.several).values()
        rows += [read(stream, schema.plain) for _ in range(size - len(rows))]
        yield cast("pa.StructArray", pa.array(rows, raw))
    rest = len(stream.read())
    if rest:
        raise CorruptionError(f"{rest:,} bytes follow its last row")


def _read_block(
    data: bytes, count: int, schema: AvroSchema, read: Callable[..., Any]
) -> list[Any] | None:
    """Return all rows of a block, read in one call; None if they are not exactly its bytes."""
    # An array is the number of its items, these, and a zero. Another number may follow instead.
    stream = io.BytesIO(encode_long(count) + data + b"\0" * bool(count))
    try:
        rows: list[Any] = read(stream, schema.block)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the caller reads the rows one by one, for the reason
        return None
    return rows if len(rows) == count and not stream.read(1) else None


def split_blocks(data: bytes, base: int) -> list[PackedGroups]:
    """Return the blocks of a packed range, each packed alone."""
    size = 8 + int.from_bytes(data[:8], "little")
    header, blocks = unpack_blocks(data)
    found = [*blocks_in(blocks, base, header.marker)]
    ends = [one.start - base for one in found[1:]] + [len(blocks)]
    return [
        PackedGroups(
            data[:size] + blocks[one.start - base : end],
            one.start,
            base + end,
            one.address,
            ROWS_MAX,
        )
        for one, end in zip(found, ends, strict=True)
    ]
