"""Decoding of json lines: one object per line. Pure.

Arrow's reader gets only lines that begin with ``{`` and end with ``}``. It crashes the process on a
line that is a bare ``null``. It also accepts several objects in one line, or one object over
several lines. It must not infer fields that the schema lacks, because deep nesting in such a field
crashes it too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from tidelog.collection.formats.json.doubt import (
    Check,
    FaultFinder,
    doubt_lines,
    field_names,
    has_infinity,
    line_checkers,
    overflows,
)
from tidelog.collection.formats.json.texts import (
    FieldTexts,
    field_texts,
    fold_names,
    without_wide,
)
from tidelog.collection.formats.lines import Bools, Int64s, are_text, outer_bytes, split_records
from tidelog.collection.formats.records import (
    BadRowSearch,
    Guess,
    Misfit,
    Records,
    blocks_of,
    gather,
    parsed_rows,
    shown,
    texts_of,
)
from tidelog.collection.formats.types import is_json, json_wire
from tidelog.collection.formats.unknown import count_unknown
from tidelog.persist.format.schema import OWN_PREFIX

BLOCK_BYTES: Final = 1 << 20
STOP_ROWS: Final = 128
_MARK: Final = b"\xef\xbb\xbf"  # Some editors write it at the beginning of a UTF-8 file.
# Parts of messages that do not concern unknown fields. They save a second read of a bad block.
_WIDE: Final = "Number too big"
_BAD_ANYHOW: Final = (" in row ", "couldn't parse", "Failed to convert")
_ROW: Final = re.compile(r" in row ([0-9]+)$")
_NO_FIELD: Final = OWN_PREFIX + "none"
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")


def decode_json(
    data: bytes, wanted: pa.Schema, *, base: int, counted: bool = True, folds_case: bool = False
) -> Records:
    """Parse the lines of a range that starts at offset ``base`` of its file.

    With ``counted``, the fields that ``wanted`` lacks are counted. With ``folds_case``, names match
    those of ``wanted`` whatever their case.
    """
    if base == 0 and data.startswith(_MARK):
        data = b" " * len(_MARK) + data[len(_MARK) :]
    starts, ends = split_records(data)
    wire = pa.schema([pa.field(f.name, json_wire(f.type)) for f in wanted])
    read = _folded(data, starts, ends, wanted) if folds_case else (data, starts, ends)
    lines = _Lines(*read, wanted, wire, {} if counted else None)

    def text(row: int) -> str:
        return shown(data[starts[row] : ends[row]])

    search = BadRowSearch(lines.parse, lines.guesses(), is_sure=lines.are_sure)
    if len(starts):
        first, last = outer_bytes(data, starts, ends)
        whole = (first == _OPEN) & (last == _CLOSE) & are_text(data, ends)
        search.bad.extend(np.flatnonzero(~whole).tolist())
        for rows in blocks_of(lines.starts, np.flatnonzero(whole), BLOCK_BYTES):
            search.take(rows)
    table, rows = parsed_rows(search, wire.empty_table())
    misfits = [Misfit(base + int(starts[row]), lines.fault(row), text(row)) for row in search.bad]
    return Records(
        table,
        base + starts[rows],
        lambda some: texts_of([text(row) for row in rows[some].tolist()]),
        misfits,
        lines.dropped or {},
    )


def _folded(
    data: bytes, starts: Int64s, ends: Int64s, wanted: pa.Schema
) -> tuple[bytes, Int64s, Int64s]:
    """Return lines with names in the columns' spelling, and the starts and ends of the lines."""
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    lines = fold_names([data[start:end] for start, end in bounds], wanted.names)
    sizes = np.fromiter(map(len, lines), np.int64, len(lines))
    return b"".join(lines), np.cumsum(sizes) - sizes, np.cumsum(sizes)


@dataclass(slots=True)
class _Lines:
    """The lines of a range, with the parser and the guesses for a search."""

    data: bytes
    starts: Int64s
    ends: Int64s
    wanted: pa.Schema
    wire: pa.Schema
    dropped: dict[str, int] | None
    _plain: pa.Schema = field(init=False)
    _texts: FieldTexts = field(init=False)
    _has_unknown: bool = field(init=False)
    _finder: FaultFinder = field(init=False)
    _faults: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = tuple(field.name for field in self.wanted if is_json(field))
        self._texts = field_texts(texts)
        self._plain = pa.schema([field for field in self.wire if field.name not in texts])
        self._has_unknown = bool(texts)
        self._finder = FaultFinder(self.wanted, self.wire)

    def guesses(self) -> list[Guess]:
        """Return the guesses of lines that cannot be parsed, the cheapest first."""
        guesses = [self.guess_by(check) for check in line_checkers(self._plain)]
        if self._texts.names:
            guesses.append(self.guess_by(self._texts.check, is_strict=True))
        return [*guesses, self.guess_by_twins, self.guess_by_stops]

    def line(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]]

    def parse(self, rows: Int64s) -> pa.Table | None:
        """Parse lines at once; None if one is bad. Count the fields that the schema lacks."""
        chunk = gather(self.data, self.starts, self.ends, rows)
        if self.dropped is None or self._has_unknown:
            found = self._read(chunk)
        else:
            # Most files have no unknown field. In a file that has one, most lines have it, so all
            # later blocks are read with unknown fields ignored.
            found = _read(chunk, self._plain, unknown="error")
            if isinstance(found, str) and _may_be_unknown(found):
                found = self._read(chunk)
                self._has_unknown = not isinstance(found, str)
        if isinstance(found, str) or found.num_rows != len(rows):
            return None
        # Arrow turns a number with many digits, or one too large for a float of 32 bits, into
        # infinity. Infinity is rare, so only then are the lines examined.
        if any(map(has_infinity, found.columns)) and any(
            overflows(self.line(row), self._plain) for row in rows.tolist()
        ):
            return None
        table = self._with_texts(found, chunk, len(rows)) if self._texts.names else found
        if table is not None and self.dropped is not None and self._has_unknown:
            count_unknown(chunk, self.wire, self.dropped)
        return None if table is None else table.select(self.wire.names)

    def _read(self, chunk: bytes) -> pa.Table | str:
        found = _read(chunk, self._plain, unknown="ignore")
        if isinstance(found, str) and _WIDE in found:
            narrow = without_wide(chunk, self._plain.names)
            return found if narrow == chunk else _read(narrow, self._plain, unknown="ignore")
        return found

    def _with_texts(self, found: pa.Table, chunk: bytes, rows: int) -> pa.Table | None:
        columns = self._texts.read(chunk, rows)
        if columns is None:
            return None
        for name, column in zip(self._texts.names, columns, strict=True):
            found = found.append_column(name, column)
        return found

    def guess_by(self, check: Check, *, is_strict: bool = False) -> Guess:
        """Return a guess of the lines that a quick parser of single lines refuses."""

        def guess(rows: Int64s) -> Bools:
            bounds = zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True)
            texts = (self.data[start:end] for start, end in bounds)
            return np.array(doubt_lines(texts, check, is_strict=is_strict), np.bool_)

        return guess

    def guess_by_twins(self, rows: Int64s) -> Bools:
        """Return a mask of the lines that contain the name of a field twice."""
        lines = [self.line(row) for row in rows.tolist()]
        doubted = np.zeros(len(rows), dtype=np.bool_)
        for name in field_names(self.wire):
            token = msgspec.json.encode(name)
            doubted |= np.fromiter((one.count(token) > 1 for one in lines), np.bool_, len(lines))
        return doubted

    def guess_by_stops(self, rows: Int64s) -> Bools:
        """Return a mask of the lines at which the reader reports that it stopped."""
        doubted = np.zeros(len(rows), dtype=np.bool_)
        at = 0
        while at < len(rows):
            few = rows[at : at + STOP_ROWS]
            chunk = gather(self.data, self.starts, self.ends, few)
            found = _read(chunk, self._plain, unknown="ignore")
            stop = _ROW.search(found) if isinstance(found, str) else None
            if stop is None:
                at += STOP_ROWS
                continue
            # Two objects in one earlier line would shift the row number. Earlier guesses have
            # removed such lines.
            place = min(at + int(stop.group(1)), len(rows) - 1)
            doubted[place] = True
            at = place + 1
        return doubted

    def are_sure(self, rows: Int64s) -> Bools:
        """Return a mask of the lines that the reader surely refuses; remember their faults."""
        return np.fromiter(map(self._is_sure, rows.tolist()), np.bool_, len(rows))

    def _is_sure(self, row: int) -> bool:
        line = self.line(row)
        found = self._finder.find(line)
        is_sure = found.is_sure or (bool(self._texts.names) and self._texts.refuses(line))
        if is_sure:
            self._faults[row] = found.reason
        return is_sure

    def fault(self, row: int) -> str:
        if row not in self._faults:
            return self._finder.find(self.line(row)).reason
        return self._faults[row]


def _may_be_unknown(said: str) -> bool:
    """Return True if a message of the reader may concern a field that the schema lacks."""
    return _WIDE in said or not any(sign in said for sign in _BAD_ANYHOW)


def _read(chunk: bytes, wire: pa.Schema, *, unknown: Literal["error", "ignore"]) -> pa.Table | str:
    """Return the parsed lines, or the reader's message if a line is bad."""
    if not wire.names:
        # Without a column, a table has no rows.
        wire = pa.schema([pa.field(_NO_FIELD, pa.bool_())])
    try:
        return pj.read_json(
            pa.BufferReader(chunk),  # type: ignore[arg-type]
            read_options=pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            parse_options=pj.ParseOptions(explicit_schema=wire, unexpected_field_behavior=unknown),
        )
    except pa.ArrowInvalid as error:
        return str(error)
