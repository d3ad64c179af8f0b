"""Which records a read gives: all, or those of one stream, or with one key. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.key_set import check_key
from tidelog.wal.format.stream_set import may_hold
from tidelog.wal.format.streams import CONTROL, check_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """``stream`` is the one stream to give, and ``key`` the one key; None stands for all.

    ``control`` asks for control records, which have no key.
    """

    stream: bytes | None = None
    key: bytes | None = None
    control: bool = False

    def may_be_in(self, fragment: Fragment) -> bool:
        """Say whether a fragment may hold any such record; if not, it need not be read."""
        is_of_stream = self.stream is None or may_hold(fragment.streams, self.stream)
        if is_of_stream and (self.key is None or may_hold(fragment.keys, self.key)):
            return True
        return self.control and may_hold(fragment.streams, CONTROL)

    def of(self, records: pa.Table) -> pa.Table:
        """Return those of a fragment's records."""
        column: Any = records.column("stream")
        is_control: Any = pc.equal(column, pa.scalar(CONTROL, pa.binary()))
        if self.stream is None and self.key is None:
            if self.control or column.null_count == len(column):
                return records
            return records.filter(pc.invert(pc.fill_null(is_control, False)))
        conditions: list[Any] = [
            pc.equal(records.column(name), pa.scalar(value, pa.binary()))
            for name, value in (("stream", self.stream), ("key", self.key))
            if value is not None
        ]
        wanted: Any = reduce(pc.and_, conditions)  # A null is neither; and so no filter lets it by.
        return records.filter(pc.or_kleene(wanted, is_control) if self.control else wanted)


ALL = Selection()


def select(stream: bytes | None, key: bytes | None = None, *, control: bool) -> Selection:
    """Return what is asked for by the id of a stream, or none, and by a key, or none.

    Raises:
        UsageError: no stream can have the id, or no record the key.
    """
    if stream is not None:
        check_stream(stream)
    if key is not None:
        check_key(key)
    return Selection(stream=stream, key=key, control=control)
