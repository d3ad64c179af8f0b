"""Selection of the records that a read returns: all, or one stream, or one key. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.wal.format.arrays import binary_scalar
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import check_key, may_hold
from tidelog.wal.format.streams import CONTROL, check_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The one ``stream`` and the one ``key`` to return; None means all.

    ``control`` adds control records, which have no key.
    """

    stream: bytes | None = None
    key: bytes | None = None
    control: bool = False

    def may_be_in(self, fragment: Fragment) -> bool:
        """Return True if a fragment may hold a selected record; otherwise it need not be read."""
        is_of_stream = self.stream is None or may_hold(fragment.streams, self.stream)
        if is_of_stream and (self.key is None or may_hold(fragment.keys, self.key)):
            return True
        return self.control and may_hold(fragment.streams, CONTROL)

    def of(self, records: pa.Table) -> pa.Table:
        """Return the selected ones of a fragment's records."""
        column: Any = records.column("stream")
        is_control: Any = pc.equal(column, binary_scalar(CONTROL))
        if self.stream is None and self.key is None:
            if self.control or column.null_count == len(column):
                return records
            return records.filter(pc.or_kleene(pc.is_null(column), pc.invert(is_control)))
        conditions: list[Any] = [
            pc.equal(records.column(name), binary_scalar(value))
            for name, value in (("stream", self.stream), ("key", self.key))
            if value is not None
        ]
        # A comparison with null is null, which a filter drops.
        wanted: Any = reduce(pc.and_, conditions)
        return records.filter(pc.or_kleene(wanted, is_control) if self.control else wanted)


ALL = Selection()


def select(stream: bytes | None, key: bytes | None = None, *, control: bool) -> Selection:
    """Return the selection of a stream and a key, where None means all.

    Raises:
        UsageError: the stream's id or the key is invalid.
    """
    if stream is not None:
        check_stream(stream)
    if key is not None:
        check_key(key)
    return Selection(stream=stream, key=key, control=control)
