"""Checks and descriptions of a stored fragment from its bytes, in wal3's form. Pure.

Source: wal3, "Recovery"; docs/internals/wal3.md.
"""

from __future__ import annotations

import pyarrow as pa

from tidelog.errors import CorruptionError
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.wal3_records import (
    count_records,
    decode_fragment,
    problems_of_fragment,
    setsum_of_records,
)


def check_count(fragment: Fragment, data: bytes) -> None:
    """Compare a fragment's number of records in the manifest with the one in its object.

    An unreadable object passes.

    Raises:
        CorruptionError: the numbers differ.
    """
    try:
        records = count_records(data, path=fragment.path)
    except CorruptionError:
        return
    wanted = fragment.limit - fragment.start
    if records != wanted:
        raise CorruptionError(
            f"the log's newest fragment has {records} records, but its manifest declares "
            f"{wanted}: restore the manifest",
            path=fragment.path,
        )


def describe_orphan(data: bytes, seq_no: int) -> Fragment:
    """Return the manifest's entry for a fragment that no manifest names yet.

    Raises:
        CorruptionError: the fragment cannot be read, is empty, or is broken.
    """
    path = fragment_path(seq_no)
    records = decode_fragment(data, path=path)
    if not records.num_rows:
        raise CorruptionError("a fragment has no records: move it away", path=path)
    fragment = fragment_over(records, seq_no, len(data))
    if problems := problems_of_fragment(records, len(data), fragment):
        raise CorruptionError(
            f"a fragment that the manifest does not name is damaged ({'; '.join(problems)}): move "
            "it away",
            path=path,
        )
    return fragment


def fragment_over(records: pa.Table, seq_no: int, size_bytes: int) -> Fragment:
    """Return the fragment that holds the records."""
    start = int(records.column("position")[0].as_py())
    return Fragment(
        path=fragment_path(seq_no),
        seq_no=seq_no,
        start=start,
        limit=start + records.num_rows,
        num_bytes=size_bytes,
        setsum=setsum_of_records(records),
    )
