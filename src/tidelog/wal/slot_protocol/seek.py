"""Seeking a time in a slot log: down the manifest's tree by last times, then past the manifest.

Writers choose the times of records, so times need not rise. The last time of a node is the greatest
time below it. So the first child whose last time reaches ``time_us`` holds the first record that
does.
Source: wal3-draft, "Interface"; design page 3, "Manifest tree, setsum, cursors, collection".
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidelog.errors import ObjectNotFound
from tidelog.wal.format.arrays import numbers_of
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import tail_of
from tidelog.wal.format.snapshot import Pointer
from tidelog.wal.read.head import load_living, load_past
from tidelog.wal.read.record_reader import RecordReader
from tidelog.wal.slot_protocol.reader import SlotReader


async def position_at(reader: SlotReader, time_us: int) -> int:
    """Return the first position whose record's time is at least ``time_us``, or the next position.

    This takes one request for the manifest, one for each level of its tree, and one for the
    fragment. For a time past the manifest, it also reads the log's end and later fragments.

    Raises:
        CorruptionError: an object is missing or changed.
        LocationError: the store failed.
    """
    head = await load_living(reader.store)
    tail_of(head.manifest)
    while True:
        try:
            found = await _below(reader.records, head.manifest.children, time_us)
            if found is not None:
                return found
            end = await reader.walker.end(head)
            # Fragments past the manifest, and those that a newer manifest took in since the first
            # read.
            since = [one for one in end.manifest.children if one.limit > head.manifest.next]
            found = await _below(reader.records, [*since, *end.fragments], time_us)
            return end.tail.position if found is None else found
        except ObjectNotFound as error:
            await load_past(reader.store, head.manifest, error)
            head = await load_living(reader.store)


async def _below(
    records: RecordReader, children: Sequence[Pointer | Fragment], time_us: int
) -> int | None:
    for child in children:
        if child.last_us is not None and child.last_us < time_us:
            continue
        if isinstance(child, Pointer):
            found = await _below(records, (await records.tree.snapshot(child)).children, time_us)
        else:
            found = first_at(await records.fetch(child), time_us)
        if found is not None:
            return found
    return None


def first_at(records: pa.Table, time_us: int) -> int | None:
    """Return the position of the first record with a time of at least ``time_us``, if any."""
    reach = numbers_of(records.column("timestamp_us")) >= time_us
    return int(records.column("position")[int(reach.argmax())].as_py()) if reach.any() else None
