"""Stored slot objects: each is still read, and written again with the same bytes.

The object without keys is older than keys of records.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.golden_slots import KEYS, TAIL, encoded, records_of
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import KeyBloom, KeySet, may_hold
from tidelog.wal.format.link import DataLink
from tidelog.wal.format.slot_object import decode_data, problems_of_data
from tidelog.wal.slot_protocol.chain import step

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "slots"
EVERY = pytest.mark.parametrize("name", list(KEYS))


def stored(name: str) -> bytes:
    return (FOLDER / f"{name}.parquet").read_bytes()


@EVERY
def test_what_was_stored_is_read(name: str) -> None:
    """A stored object decodes to its records and link, and has no problems."""
    data = stored(name)
    link, records = decode_data(data, path=TAIL.path)
    fragment = step(TAIL, link, len(data))[1]

    assert records == records_of(name)
    assert isinstance(fragment, Fragment)
    assert problems_of_data(records, link, len(data), fragment, with_setsum=True) == []


@EVERY
def test_it_is_written_as_it_was(name: str) -> None:
    """The encoder writes the stored schema and metadata, and equal bytes with that Parquet."""
    data, (link, again) = stored(name), encoded(name)
    was, now = (pq.read_metadata(pa.BufferReader(one)) for one in (data, again))

    assert decode_data(data, path="p")[0] == link
    assert was.schema.names == now.schema.names
    assert was.metadata == now.metadata
    if was.created_by == now.created_by:
        assert again == data


def test_what_is_recorded_of_keys_is_pinned() -> None:
    """The stored key sets are an empty list, a list, a filter and no set."""
    found: dict[str, KeySet] = {}
    for name in KEYS:
        link, _ = decode_data(stored(name), path="p")
        assert isinstance(link, DataLink)
        found[name] = link.keys
        assert all(may_hold(link.keys, key) for key in KEYS[name] if key is not None)
    held = found.pop("filtered")

    assert found == {"keyless": (), "listed": (b"", b"a", b"\xff\x00"), "repeated": None}
    assert isinstance(held, KeyBloom)
    assert (len(held.bits), held.hashes, held.bits[:4].hex()) == (124, 7, "2d3b428a")
