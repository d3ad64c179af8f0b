"""The scope of a read of a keyed log: its keys and sequences, and the pruning by them. Pure.

A scope may select more than Spark's conditions, since Spark evaluates each condition again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.part import RunPart
from tidelog.keyed.query import KeyedQuery
from tidelog.keyed.read.piece import in_range
from tidelog.keyed.read.sources import with_keys
from tidelog.keyed.values import SEQUENCE_MAX
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.stream_set import may_hold

KEYS_MAX: Final = 64  # More keys are read as a range.


class KeyedScope(msgspec.Struct, frozen=True, kw_only=True):
    """Some keys, or (None) all keys of ``[first, last)``; and the sequences ``[start, limit)``."""

    keys: tuple[bytes, ...] | None = None
    first: bytes = b""
    last: bytes | None = None
    start: int = 0
    limit: int = SEQUENCE_MAX

    @property
    def is_nothing(self) -> bool:
        """Return True if the scope can select no record."""
        return (
            self.keys == ()
            or self.start >= self.limit
            or (self.last is not None and self.first >= self.last)
        )

    def keys_within(self, least: bytes, most: bytes) -> bool:
        """Return True if the scope may select keys from ``least`` to ``most`` (inclusive)."""
        if self.keys is not None:
            return any(least <= key <= most for key in self.keys)
        return most >= self.first and (self.last is None or least < self.last)

    def may_be_in(self, part: RunPart) -> bool:
        """Return True if a part may hold a selected record."""
        if part.max_sequence < self.start or part.min_sequence >= self.limit:
            return False
        return self.keys_within(part.first_key, part.last_key)

    def may_be_loose_in(self, fragment: Fragment) -> bool:
        """Return True if a fragment of the wal may hold a selected record."""
        if fragment.limit <= self.start or fragment.start >= self.limit:
            return False
        if fragment.keys == ():
            return False
        if self.keys is not None:
            return any(may_hold(fragment.keys, key) for key in self.keys)
        if isinstance(fragment.keys, tuple):
            return any(self.keys_within(key, key) for key in fragment.keys)
        return True

    def rows_of(self, records: pa.Table) -> pa.Table:
        """Return the selected rows of records in the order of sequences."""
        found = in_range(records, self.start, self.limit)
        if self.keys is None:
            return with_keys(found, self.first, self.last)
        chosen: Any = pc.is_in(found.column("key"), value_set=pa.array(self.keys, pa.binary()))
        return found.filter(chosen)

    def between(self, start: int, limit: int) -> KeyedScope:
        """Return this scope, limited to the sequences ``[start, limit)``."""
        return msgspec.structs.replace(
            self, start=max(self.start, start), limit=min(self.limit, limit)
        )

    def of_keys(self, keys: Iterable[bytes]) -> KeyedScope:
        """Return this scope, limited to some keys."""
        chosen = tuple(sorted(k for k in set(keys) if self.keys_within(k, k)))
        if len(chosen) <= KEYS_MAX:
            return msgspec.structs.replace(self, keys=chosen)
        return self.of_range(chosen[0], chosen[-1] + b"\0")

    def of_range(self, first: bytes, last: bytes | None) -> KeyedScope:
        """Return this scope, limited to the keys ``[first, last)``."""
        if self.keys is not None:
            kept = [k for k in self.keys if k >= first and (last is None or k < last)]
            return msgspec.structs.replace(self, keys=tuple(kept))
        if last is None or (self.last is not None and self.last < last):
            last = self.last
        return msgspec.structs.replace(self, first=max(self.first, first), last=last)

    def narrowed(self, filters: Iterable[Any]) -> KeyedScope:
        """Return this scope, limited by Spark's filters; it may select more than they do."""
        found = self
        for each in filters:
            name, *inner = getattr(each, "attribute", None) or [""]
            if inner or name not in ("key", "sequence"):
                continue
            kind = type(each).__name__
            value = getattr(each, "value", None)
            if name == "key":
                found = _by_key(found, kind, value)
            else:
                found = _by_sequence(found, kind, value)
        return found


def scope_of(query: KeyedQuery) -> KeyedScope:
    """Return the scope of a query."""
    keys, limit = query.keys, SEQUENCE_MAX if query.limit is None else query.limit
    if keys.key is not None:
        return KeyedScope(keys=(keys.key,), start=query.start, limit=limit)
    return KeyedScope(first=keys.from_key, last=keys.to_key, start=query.start, limit=limit)


def _by_key(wanted: KeyedScope, kind: str, value: Any) -> KeyedScope:
    given = list(value) if kind == "In" else [value]
    keys = [bytes(one) for one in given if isinstance(one, bytes | bytearray)]
    if len(keys) != len(given):
        return wanted
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        return wanted.of_keys(keys)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return wanted.of_range(keys[0], None)
    if kind in ("LessThan", "LessThanOrEqual"):
        return wanted.of_range(b"", keys[0] + b"\0")
    return wanted


def _by_sequence(wanted: KeyedScope, kind: str, value: Any) -> KeyedScope:
    given = list(value) if kind == "In" else [value]
    if not given or any(type(one) is not int for one in given):
        return wanted
    low, high = min(given), max(given)
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        return wanted.between(low, high + 1)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return wanted.between(low, SEQUENCE_MAX)
    if kind in ("LessThan", "LessThanOrEqual"):
        return wanted.between(0, high + 1)
    return wanted
