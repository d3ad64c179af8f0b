"""The scope of a read of a keyed log: its keys and sequences, and the pruning by them. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.part import RunPart
from tidelog.keyed.format.records import in_range, with_keys
from tidelog.keyed.values import SEQUENCE_MAX, KeyedQuery
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import may_hold


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
        rows = in_range(records, self.start, self.limit)
        if self.keys is None:
            return with_keys(rows, self.first, self.last)
        chosen: Any = pc.is_in(rows.column("key"), value_set=pa.array(self.keys, pa.binary()))
        return rows.filter(chosen)

    def between(self, start: int, limit: int) -> KeyedScope:
        """Return this scope, limited to the sequences ``[start, limit)``."""
        return msgspec.structs.replace(
            self, start=max(self.start, start), limit=min(self.limit, limit)
        )

    def of_range(self, first: bytes, last: bytes | None) -> KeyedScope:
        """Return this scope, limited to the keys ``[first, last)``."""
        if self.keys is not None:
            kept = [k for k in self.keys if k >= first and (last is None or k < last)]
            return msgspec.structs.replace(self, keys=tuple(kept))
        if last is None or (self.last is not None and self.last < last):
            last = self.last
        return msgspec.structs.replace(self, first=max(self.first, first), last=last)


def scope_of(query: KeyedQuery) -> KeyedScope:
    """Return the scope of a query."""
    keys, limit = query.keys, SEQUENCE_MAX if query.limit is None else query.limit
    if keys.key is not None:
        return KeyedScope(keys=(keys.key,), start=query.start, limit=limit)
    return KeyedScope(first=keys.from_key, last=keys.to_key, start=query.start, limit=limit)
