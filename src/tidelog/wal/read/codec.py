"""Decoders from an object's bytes to verified records, one for each protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from tidelog.errors import CorruptionError
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.slot_object import decode_data, problems_of_data
from tidelog.wal.format.wal3_records import check_fragment
from tidelog.wal.format.wal3_records import decode_fragment as decode_records

Codec: TypeAlias = Callable[[bytes, Fragment], pa.Table]


def checked_fragment(data: bytes, fragment: Fragment) -> pa.Table:
    """Return the records of a wal3 fragment.

    Raises:
        CorruptionError: they differ from the log's description.
    """
    records = decode_records(data, path=fragment.path)
    check_fragment(records, len(data), fragment)
    return records


def checked_data(data: bytes, fragment: Fragment) -> pa.Table:
    """Return the records of a slot's object.

    Raises:
        CorruptionError: the object cannot be read, or differs from the log's description.
    """
    link, records = decode_data(data, path=fragment.path)
    if problems := problems_of_data(records, link, len(data), fragment):
        raise CorruptionError(
            f"a slot's object differs from the log's description of it ({'; '.join(problems)}): "
            "restore it",
            path=fragment.path,
        )
    return records
