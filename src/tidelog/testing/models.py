"""Models: the definition of a shard and a collection, in plain Python.

A shard is a list of updates. Its contents at a time are the sum of the updates up to that time. A
collection with envelope ``upsert`` is a dict from keys to rows. Tidelog must always agree with
these models.
Source: persist, "Jargon"; design page 7.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from tidelog.persist.format.schema import DIFF, TIME

Row = tuple[Hashable, ...]
NAN = "NaN, which equals itself here"


@dataclass(frozen=True, slots=True)
class Update:
    """One update; ``row`` is canonical (see `canonical`)."""

    row: Row
    time: int
    diff: int


def canonical(value: object) -> Hashable:
    """Return a stand-in for a value; two are equal exactly if SQL groups the values together."""
    if isinstance(value, float):
        # NaN equals NaN, and -0 equals 0.
        return NAN if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, canonical(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(canonical(item) for item in value)
    assert isinstance(value, Hashable)
    return value


def rows_of(table: pa.Table, names: Iterable[str]) -> list[Row]:
    """Return the rows of a table over some columns."""
    columns = [[canonical(v) for v in table.column(name).to_pylist()] for name in names]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def updates_of(table: pa.Table) -> list[Update]:
    """Return the updates in a table of a shard's form."""
    names = [n for n in table.column_names if n not in (TIME, DIFF)]
    times, diffs = (table.column(n).to_numpy().tolist() for n in (TIME, DIFF))
    return [Update(*u) for u in zip(rows_of(table, names), times, diffs, strict=True)]


def contents_of(table: pa.Table) -> Counter[Row]:
    """Return the contents of a table of rows and ``_diff``.

    Raises:
        AssertionError: the table is not consolidated.
    """
    names = [n for n in table.column_names if n != DIFF]
    counts: Counter[Row] = Counter()
    for row, diff in zip(
        rows_of(table, names), table.column(DIFF).to_numpy().tolist(), strict=True
    ):
        assert diff != 0, f"a row has the diff 0: {row}"
        assert row not in counts, f"a row occurs twice: {row}"
        counts[row] = diff
    return counts


def accumulate(updates: Iterable[Update], as_of: int) -> Counter[Row]:
    """Return the contents at a time."""
    counts: Counter[Row] = Counter()
    for update in updates:
        if update.time <= as_of:
            counts[update.row] += update.diff
    return Counter({row: count for row, count in counts.items() if count})


def consolidate(
    updates: Iterable[Update], *, after: int = -1, until: int | None = None
) -> Counter[tuple[Row, int]]:
    """Return the sums of the updates with ``after < time <= until``, by row and time."""
    counts: Counter[tuple[Row, int]] = Counter()
    for update in updates:
        if after < update.time and (until is None or update.time <= until):
            counts[update.row, update.time] += update.diff
    return Counter({key: count for key, count in counts.items() if count})


@dataclass(slots=True)
class ShardModel:
    """A shard: updates sorted by time, complete before ``upper``; None means finished."""

    upper: int | None = 0
    updates: list[Update] = field(default_factory=list)

    def compare_and_append(
        self, updates: Iterable[Update], expected_upper: int, upper: int | None
    ) -> bool:
        """Append if ``upper`` is the expected one; return True if it was."""
        if self.upper is None or self.upper != expected_upper:
            return False
        self.upper = upper
        self.updates = sorted([*self.updates, *updates], key=lambda u: u.time)
        return True

    def contents(self, as_of: int) -> Counter[Row]:
        return accumulate(self.updates, as_of)

    def changes(self, after: int, until: int | None = None) -> Counter[tuple[Row, int]]:
        return consolidate(self.updates, after=after, until=until)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a raw source; a ``row`` of None deletes the key (upsert).

    ``own`` is the event time. For a late message it is earlier than ``time``, at which it counts.
    """

    time: int
    key: Row
    row: Row | None
    own: int = 0


def replay_upsert(messages: Iterable[Message]) -> Iterator[Update]:
    """Yield the updates of messages that are in the order of their times and addresses.

    A message older than an earlier one of its key, row or deletion, is ignored.
    """
    rows: dict[Row, Row] = {}
    newest: dict[Row, int] = {}
    for message in messages:
        if message.own < newest.get(message.key, message.own):
            continue
        newest[message.key] = message.own
        old = rows.pop(message.key, None)
        if old is not None:
            yield Update(old, message.time, -1)
        if message.row is not None:
            rows[message.key] = message.row
            yield Update(message.row, message.time, +1)


def replay_none(messages: Iterable[Message]) -> Iterator[Update]:
    """Yield the updates of messages that are all appended."""
    for message in messages:
        if message.row is not None:
            yield Update(message.row, message.time, +1)
