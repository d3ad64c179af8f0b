"""Checks of a keyed log's reads: exact up to the end that a read reports.

Records retired while a read runs may be in its answer or not. Every other record is in the answer,
or past its end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sim.checkers.demands import demand
from sim.checkers.keyed_truth import KeyedTruth, Row

Wants = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The request of a read: keys, sequences ``[start, limit)``, and a number of rows.

    All records before sequence ``known`` must be in the answer. ``own`` are records, by value, that
    may be in it before they are durable.
    """

    truth: KeyedTruth
    wants: Wants
    about: str
    start: int = 0
    limit: int | None = None
    count: int | None = None
    newest_first: bool = False
    known: int = 1
    own: Mapping[bytes, bytes] = field(default_factory=dict)
    reached: int = 1  # The sequence after the reader's own last accepted record.

    def until(self, sequence: int) -> int:
        """Return the end of the request if the log ends at ``sequence``."""
        return sequence if self.limit is None else min(self.limit, sequence)

    def check_scan(self, rows: Sequence[Row], following: int) -> None:
        """Check a read's rows, and the sequence to continue from, against the log as it is now."""
        truth, facts = self.truth, {"read": self.about, "log": self.truth.name, "next": following}
        self._check_order(rows)
        most = max(self.start, self.until(max(truth.next, self.reached)))
        demand(following <= most, "a read goes on past all that there is", most=most, **facts)
        is_full = self.count is not None and len(rows) >= self.count
        demand(self.count is None or len(rows) <= self.count, "a read gave too many rows", **facts)
        if is_full and not self.newest_first:
            after = max(row[1] for row in rows) + 1
            demand(following == after, "a read that is full goes on elsewhere", **facts)
        else:
            least = self.until(self.known)
            demand(following >= least, "a read ends before what it must show", least=least, **facts)
        wanted = self._wanted(following)
        if self.newest_first and self.count is not None:
            # Records retired while the read ran may be counted or not.
            kept = [row for row in wanted if row[1] >= truth.retired]
            wanted = wanted[-max(self.count, len(rows)) :] if is_full else wanted
            kept = kept[-self.count :] if is_full else kept
        else:
            kept = [row for row in wanted if row[1] >= truth.retired]
        self._check_rows(rows, wanted, kept, **facts)

    def check_count(self, least: int, most: int) -> None:
        """Check a count, or its bounds, against the log as it is now."""
        truth = self.truth
        begin = max(self.start, truth.retired)
        fewest = len(truth.rows(self.wants, begin, self.until(self.known)))
        ordered = self.until(max(truth.next, self.reached))
        there = truth.rows(self.wants, self.start, self.until(truth.next))
        greatest = len(there) + (len(self.own) if ordered > truth.next or self.own else 0)
        demand(
            least <= greatest and fewest <= most,
            "a count is another",
            read=self.about,
            log=truth.name,
            count=(least, most),
            there=(fewest, greatest),
        )

    def check_keys(self, keys: Sequence[tuple[bytes, int, int, int]]) -> None:
        """Check listed keys (with records, least and greatest sequence) against the log."""
        truth = self.truth
        names = [key for key, *_ in keys]
        facts = {"read": self.about, "log": truth.name, "keys": names}
        demand(names == sorted(set(names)), "keys are not in order, or twice", **facts)
        demand(all(self.wants(name) for name in names), "keys were listed unasked", **facts)
        must = {row[0] for row in truth.rows(self.wants, truth.retired, self.until(self.known))}
        demand(must <= set(names), "keys are missing", missing=must - set(names), **facts)
        for key, count, first, last in keys:
            told = replace(self, wants=partial(operator.eq, key), about=f"{self.about} {key!r}")
            told.check_count(count, count)
            there = {row[1] for row in truth.rows(told.wants, 0, truth.next)}
            if not self.own:
                demand({first, last} <= there, "a key's bounds are others", key=key, **facts)

    def _wanted(self, following: int) -> list[Row]:
        """Return the requested durable records before the end of the read."""
        return self.truth.rows(self.wants, self.start, self.until(following))

    def _check_order(self, rows: Sequence[Row]) -> None:
        seen: dict[bytes, int] = {}
        for key, sequence, _, _ in rows:
            last = seen.get(key)
            demand(
                last is None or (sequence < last if self.newest_first else sequence > last),
                "the records of a key are not in order",
                read=self.about,
                key=key,
            )
            seen[key] = sequence
        demand(len({row[1] for row in rows}) == len(rows), "a sequence was read twice")

    def _check_rows(
        self, rows: Sequence[Row], wanted: Iterable[Row], kept: Iterable[Row], **facts: object
    ) -> None:
        given, there = set(rows), set(wanted)
        strange = [row for row in given - there if not self._is_own(row)]
        demand(not strange, "a read gave what is not there", strange=strange, **facts)
        own = {row[1] for row in given - there}
        missing = [row for row in kept if row not in given and row[1] not in own]
        demand(not missing, "a read lacks records", missing=missing, **facts)

    def _is_own(self, row: Row) -> bool:
        key, _, _, value = row
        return self.own.get(value) == key and self.wants(key)
