"""Records: what a format's parser gives, before types are fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.places import Int64s
from tidelog.collection.formats.sift import Sieve
from tidelog.persist.format.schema import OWN_PREFIX

OFFSET: Final = OWN_PREFIX + "offset"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A record that is none, or does not fit: where it stands, why, and its text."""

    offset: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Records:
    """Parsed records in address order: a table of wire types, and each row's offset.

    ``texts`` returns the text of some rows.
    """

    table: pa.Table
    offsets: Int64s
    texts: Callable[[Int64s], list[str]]
    misfits: Sequence[Misfit] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)


def sifted(sieve: Sieve[pa.Table], nothing: pa.Table) -> tuple[pa.Table, Int64s]:
    """Return what a sieve kept as one table, and the rows that it stands for, in order.

    Where it kept nothing, ``nothing`` is the table.
    """
    tables, rows, order = sieve.ordered()
    table = pa.concat_tables(tables) if tables else nothing
    return (table, rows) if order is None else (table.take(order), rows[order])


def shown(data: bytes) -> str:
    """Return a record's bytes as a person may read them."""
    return data.decode("utf-8", errors="replace").strip("\r\n")


def row_texts(rows: pa.Table) -> list[str]:
    """Return rows as a person may read them; the text of a row depends on that row alone."""
    columns = [_values(column) for column in rows.columns]
    return [
        str(_readable(dict(zip(rows.column_names, row, strict=True))))
        for row in zip(*columns, strict=True)
    ]


def _values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """Return a column as values of Python; a time that it does not hold is told as text.

    So are nanoseconds, of which Python makes one thing with pandas, and another without.
    """
    if not _has_nanos(column.type):
        with suppress(ValueError, OverflowError, KeyError):
            return column.to_pylist()
    return [_value(scalar) for scalar in column]


def _has_nanos(dtype: Any) -> bool:
    if pa.types.is_nested(dtype):
        return any(_has_nanos(dtype.field(place).type) for place in range(dtype.num_fields))
    return pa.types.is_temporal(dtype) and getattr(dtype, "unit", "") == "ns"


def _value(scalar: Any) -> Any:
    dtype = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_dictionary(dtype):
        return _value(scalar.value)
    if pa.types.is_struct(dtype):
        return {dtype.field(n).name: _value(scalar[n]) for n in range(dtype.num_fields)}
    if pa.types.is_map(dtype):
        return [(_value(entry[0]), _value(entry[1])) for entry in scalar.values]
    if pa.types.is_nested(dtype):
        return [_value(one) for one in scalar.values]
    if not _has_nanos(dtype):
        with suppress(ValueError, OverflowError, KeyError):
            return scalar.as_py()
    if pa.types.is_timestamp(dtype):
        # Not by its zone's clock: for that, a database of time zones would have to be there.
        scalar = scalar.cast(pa.timestamp(dtype.unit))
    return scalar.cast(pa.string()).as_py()


def _readable(value: Any) -> Any:
    """Return a value of Python in which bytes are text, as far as they are."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, dict):
        return {name: _readable(one) for name, one in value.items()}
    return [_readable(one) for one in value] if isinstance(value, list) else value


def blocks_of(starts: Int64s, rows: Int64s, block_bytes: int) -> Iterator[Int64s]:
    """Cut rows, in order, into blocks of about ``block_bytes``."""
    if len(rows):
        block = starts[rows] // block_bytes
        yield from np.split(rows, np.flatnonzero(np.diff(block)) + 1)


def gather(data: bytes, starts: Int64s, ends: Int64s, rows: Int64s) -> bytes:
    """Return the bytes of some records (in order, at least one), one after another."""
    breaks = np.flatnonzero(np.diff(rows) != 1)
    if not len(breaks):
        return data[starts[rows[0]] : ends[rows[-1]]]
    firsts = starts[rows[np.append(0, breaks + 1)]].tolist()
    lasts = ends[rows[np.append(breaks, len(rows) - 1)]].tolist()
    return b"".join([data[start:end] for start, end in zip(firsts, lasts, strict=True)])
