"""Which records a read gives: all, or those of one stream; control records if asked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.stream_set import may_hold
from tidelog.wal.format.streams import CONTROL, check_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """``stream`` is the one stream to give, None for all; ``control`` asks for control records."""

    stream: bytes | None = None
    control: bool = False

    def may_be_in(self, fragment: Fragment) -> bool:
        """Say whether a fragment may hold any such record; if not, it need not be read."""
        if self.stream is None or may_hold(fragment.streams, self.stream):
            return True
        return self.control and may_hold(fragment.streams, CONTROL)

    def of(self, records: pa.Table) -> pa.Table:
        """Return those of a fragment's records."""
        column: Any = records.column("stream")
        is_control: Any = pc.equal(column, pa.scalar(CONTROL, pa.binary()))
        if self.stream is None:
            if self.control or column.null_count == len(column):
                return records
            return records.filter(pc.invert(pc.fill_null(is_control, False)))
        wanted: Any = pc.equal(column, pa.scalar(self.stream, pa.binary()))
        return records.filter(pc.or_(wanted, is_control) if self.control else wanted)


ALL = Selection()


def select(stream: bytes | None, *, control: bool) -> Selection:
    """Return what is asked for by the id of a stream, or none, and whether control records are.

    Raises:
        UsageError: no stream can have the id.
    """
    if stream is not None:
        check_stream(stream)
    return Selection(stream=stream, control=control)
