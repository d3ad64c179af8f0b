"""Records: the result of a format's parser, before conversion to the wanted types. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.bad_rows import BadRowSearch
from tidelog.collection.formats.places import Int64s
from tidelog.collection.formats.row_texts import Texts
from tidelog.persist.format.schema import OWN_PREFIX

OFFSET: Final = OWN_PREFIX + "offset"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A bad record: one that does not parse or does not fit, with its offset, reason and text."""

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
    texts: Callable[[Int64s], Texts]
    misfits: Sequence[Misfit] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)


def parsed_rows(search: BadRowSearch[pa.Table], nothing: pa.Table) -> tuple[pa.Table, Int64s]:
    """Return the parsed rows of a search as one table, with their row numbers, in order.

    If no row parsed, the table is ``nothing``.
    """
    tables, rows, order = search.ordered()
    table = pa.concat_tables(tables) if tables else nothing
    return (table, rows) if order is None else (table.take(order), rows[order])


def shown(data: bytes) -> str:
    """Return a record's bytes as text for the errors collection."""
    return data.decode("utf-8", errors="replace").strip("\r\n")


def blocks_of(starts: Int64s, rows: Int64s, block_bytes: int) -> Iterator[Int64s]:
    """Yield rows, in order, in blocks of about ``block_bytes``."""
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
