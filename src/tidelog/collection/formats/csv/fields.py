"""The fields of csv records: which records can be parsed, and into how many fields. Pure.

Most records are checked together, by the places of quotes and delimiters. Records with quotes in
unusual places are checked one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from tidelog.collection.formats.lines import Bools, Bytes, CsvDialect, Int64s, places_of

_NEWLINE: Final = 10
_RETURN: Final = 13
OPEN: Final = "a quote is not closed"
BEHIND: Final = "text follows a closing quote"
RETURN: Final = "a carriage return is outside quotes"


@dataclass(frozen=True, slots=True)
class QuotedFields:
    """The places where quoted fields open and close, and the faults of records, by row."""

    toggles: Int64s
    faults: dict[int, str]


def find_fields(data: bytes, starts: Int64s, ends: Int64s, dialect: CsvDialect) -> QuotedFields:
    """Find the quoted fields of records, and the records that cannot be parsed."""
    faults: dict[int, str] = {}
    quotes = places_of(ord(dialect.quote), data) if dialect.quote else np.zeros(0, np.int64)
    raw = np.frombuffer(data, dtype=np.uint8)
    odd = _odd_rows(raw, quotes, starts, ends, dialect)
    toggles = quotes
    if len(odd):
        rows = np.searchsorted(ends, quotes, side="right")
        kept = [quotes[~np.isin(rows, odd)]]
        for row in odd.tolist():
            start = int(starts[row])
            try:
                found = quoted_spans(data[start : ends[row]], dialect)
                kept.append(start + np.array(found, np.int64).reshape(-1))
            except ValueError as error:
                faults[row] = str(error)
        toggles = np.sort(np.concatenate(kept))
    for row in _rows_with_returns(data, starts, ends, toggles):
        faults.setdefault(row, RETURN)
    return QuotedFields(toggles, faults)


def _rows_with_returns(data: bytes, starts: Int64s, ends: Int64s, toggles: Int64s) -> list[int]:
    """Return the records with a carriage return outside of quotes and not in a line end."""
    if not len(starts) or data.count(b"\r") == data.count(b"\r\n"):
        return []
    raw = np.frombuffer(data, dtype=np.uint8)
    returns = places_of(_RETURN, data)
    returns = returns[returns + 1 < len(raw)]
    alone = returns[raw[returns + 1] != _NEWLINE]
    alone = alone[np.searchsorted(toggles, alone) % 2 == 0]
    rows = np.minimum(np.searchsorted(ends, alone, side="right"), len(starts) - 1)
    # Some are in lines that are otherwise blank, which are not records.
    inside = (starts[rows] <= alone) & (alone < ends[rows])
    return [int(row) for row in np.unique(rows[inside])]


def _odd_rows(
    raw: Bytes, quotes: Int64s, starts: Int64s, ends: Int64s, dialect: CsvDialect
) -> Int64s:
    """Return the records in which quotes do not open and close fields in turn."""
    if not len(quotes):
        return np.zeros(0, np.int64)
    rows = np.searchsorted(ends, quotes, side="right")
    first = np.searchsorted(quotes, starts)
    opening = (np.arange(len(quotes)) - first[rows]) % 2 == 0
    delimiter, limit = ord(dialect.delimiter), content_ends(raw, ends)
    twin = (np.diff(quotes) == 1) & (np.diff(rows) == 0)
    opens = (quotes == starts[rows]) | (raw[np.maximum(quotes - 1, 0)] == delimiter)
    closes = (quotes + 1 == limit[rows]) | (raw[np.minimum(quotes + 1, len(raw) - 1)] == delimiter)
    opens[1:] |= twin
    closes[:-1] |= twin
    counts = np.bincount(rows, minlength=len(starts))
    odd: Bools = counts % 2 == 1
    odd[rows[~np.where(opening, opens, closes)]] = True
    return np.flatnonzero(odd)


def content_ends(raw: Bytes, ends: Int64s) -> Int64s:
    """Return the end of each record without its line end."""
    limit: Int64s = ends - (raw[ends - 1] == _NEWLINE)
    limit -= raw[np.maximum(limit - 1, 0)] == _RETURN
    return limit


def quoted_spans(record: bytes, dialect: CsvDialect) -> list[tuple[int, int]]:
    """Return the places of the opening and the closing quote of each quoted field of a record.

    Raises:
        ValueError: the record cannot be parsed; the message is the reason.
    """
    body = record.removesuffix(b"\n").removesuffix(b"\r")
    quote, delimiter = dialect.quote.encode(), dialect.delimiter.encode()
    spans: list[tuple[int, int]] = []
    at = 0
    while True:
        if quote and body.startswith(quote, at):
            found = _closing(dialect.quote).match(body, at + 1)
            if found is None:
                raise ValueError(OPEN)
            spans.append((at, found.end() - 1))
            at = found.end()
            if at < len(body) and not body.startswith(delimiter, at):
                raise ValueError(BEHIND)
        else:
            limit = body.find(delimiter, at)
            if b"\r" in body[at : limit if limit >= 0 else len(body)]:
                raise ValueError(RETURN)
            at = limit if limit >= 0 else len(body)
        if at >= len(body):
            return spans
        at += 1


@lru_cache(maxsize=8)
def _closing(quote: str) -> re.Pattern[bytes]:
    """Return the pattern of a quoted field, from after its opening quote to its closing one."""
    sign = re.escape(quote.encode())
    return re.compile(rb"[^%b]*+(?:%b%b[^%b]*+)*+%b" % (sign, sign, sign, sign, sign), re.DOTALL)


def count_fields(
    data: bytes, starts: Int64s, ends: Int64s, toggles: Int64s, dialect: CsvDialect
) -> Int64s:
    """Return the number of fields of each record."""
    delimiters = places_of(ord(dialect.delimiter), data)
    if len(toggles):
        delimiters = delimiters[np.searchsorted(toggles, delimiters) % 2 == 0]
    counts: Int64s = np.searchsorted(delimiters, ends) - np.searchsorted(delimiters, starts) + 1
    return counts


def split_fields(record: bytes, dialect: CsvDialect) -> list[tuple[str, bool]]:
    """Return the fields of one record as text, and whether each is quoted.

    Raises:
        ValueError: the record cannot be parsed, or is not UTF-8.
    """
    body = record.removesuffix(b"\n").removesuffix(b"\r")
    spans = dict(quoted_spans(record, dialect))
    quote, delimiter = dialect.quote.encode(), dialect.delimiter.encode()
    fields: list[tuple[str, bool]] = []
    at = 0
    while True:
        if at in spans:
            limit = spans[at] + 1
            text = body[at + 1 : limit - 1].replace(quote * 2, quote)
        else:
            found = body.find(delimiter, at)
            limit = found if found >= 0 else len(body)
            text = body[at:limit]
        fields.append((text.decode("utf-8"), at in spans))
        if limit >= len(body):
            return fields
        at = limit + 1
