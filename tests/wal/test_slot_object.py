"""Slot objects: the checks of readers, writers and scrubs, and objects refused unread."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.golden_slots import EMPTY, GENESIS, TAIL
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, UsageError
from tidelog.wal.format.arrays import column_sum
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import DataLink, FenceLink, fragment_of
from tidelog.wal.format.manifest import CHAIN, decode_manifest, encode_manifest
from tidelog.wal.format.slot_object import (
    SLOT_RECORDS,
    _encode,
    checked_data,
    decode_data,
    decode_link,
    encode_data,
    place_slot_records,
    problems_of_data,
)
from tidelog.wal.format.wal3_records import RECORDS, encode_fragment

PATH = GENESIS.path(1)


def placed(bodies: list[bytes], streams: list[bytes | None] | None = None) -> pa.Table:
    return place_slot_records(
        pa.array(bodies, pa.binary()),
        start=1,
        times=np.full(len(bodies), 7, dtype=np.int64),
        streams=None if streams is None else pa.array(streams, pa.binary()),
    )


def encoded(records: pa.Table) -> tuple[DataLink, bytes]:
    return encode_data(records, TAIL, writer="w")


def named(link: DataLink, data: bytes) -> Fragment:
    return fragment_of(link, PATH, len(data))


def test_what_is_written_does_not_follow_a_library_s_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stored bytes do not depend on the library's defaults, which readers may refuse."""

    class Other(pq.ParquetWriter):
        """A writer of a future PyArrow."""

        def write_table(self, table: pa.Table, row_group_size: int | None = 7) -> None:
            super().write_table(table, row_group_size)

    records = placed([b"%d" % n for n in range(1_000)])
    rows = [range(1, 1_001), [7] * 1_000, [b"%d" % n for n in range(1_000)]]
    theirs = pa.table([list(column) for column in rows], schema=RECORDS)
    before = [encoded(records)[1], encode_fragment(theirs, write_id="w")]
    monkeypatch.setattr(pq, "ParquetWriter", partial(Other, data_page_size=100))
    write = partial(pq.write_table, data_page_size=100, row_group_size=7)
    monkeypatch.setattr(pq, "write_table", write)

    assert encoded(records)[1] == before[0]
    assert encode_fragment(theirs, write_id="w") == before[1]


def test_reads_compare_columns_and_scrub_the_setsum_too() -> None:
    """A read checks the sum of the columns; a scrub checks the setsum too."""
    link, data = encoded(placed([b"one", b"two"], [None, b"s"]))
    wrong = replace(link, setsum=Setsum.of(b"of something else"))
    as_if = _encode(decode_data(data, path=PATH)[1], wrong)
    found, records = decode_data(as_if, path=PATH)
    fragment = named(wrong, as_if)

    assert found == wrong
    assert problems_of_data(records, found, len(as_if), fragment) == []
    told = problems_of_data(records, found, len(as_if), fragment, with_setsum=True)
    assert told == ["its setsum does not match its records"]
    known = problems_of_data(decode_data(data, path=PATH)[1], link, len(data), named(link, data))
    assert known == []


@pytest.mark.parametrize(
    ("bodies", "streams"),
    [
        ([b"one", b"twO"], [None, b"s"]),
        ([b"onet", b"wo"], [None, b"s"]),
        ([b"one", b"two"], [b"s", None]),
        ([b"one", b"two"], [b"s", b"s"]),
    ],
)
def test_no_changed_record_is_served(bodies: list[bytes], streams: list[bytes | None]) -> None:
    """A link over other records than its own raises CorruptionError, by the sum of the columns."""
    link, _ = encoded(placed([b"one", b"two"], [None, b"s"]))
    as_if = _encode(placed(bodies, streams), link)

    assert decode_link(as_if, path=PATH) == link
    with pytest.raises(CorruptionError, match="column sum does not match"):
        checked_data(as_if, named(link, as_if))


def test_a_link_has_the_sum_of_its_columns() -> None:
    """A link with a missing or wrong sum of the columns raises CorruptionError."""
    _, data = encoded(placed([b"one"]))
    link = decode_link(data, path=PATH)
    assert isinstance(link, DataLink)
    for other in ("", "0" * 32, link.column_sum.upper()):
        as_if = _encode(placed([b"one"]), replace(link, column_sum=other))
        with pytest.raises(CorruptionError, match="column sum does not match"):
            checked_data(as_if, named(link, as_if))


@pytest.mark.parametrize("item_hash", ["sha3_256", "xxh3_128", ""])
def test_a_log_of_another_item_hash_is_refused(item_hash: str) -> None:
    """A log with another item hash raises UsageError, because all its sums would differ."""
    fields = json.loads(encode_manifest(EMPTY))
    assert fields[CHAIN]["item_hash"] == "sha256"
    fields[CHAIN]["item_hash"] = item_hash

    with pytest.raises(UsageError, match=f"setsums use the hash {item_hash!r}"):
        decode_manifest(json.dumps(fields).encode())
    del fields[CHAIN]["item_hash"]
    with pytest.raises(CorruptionError, match="'item_hash' is missing"):
        decode_manifest(json.dumps(fields).encode())


@pytest.mark.parametrize(("start", "limit"), [(1, 2**40), (2, 3), (3, 3), (1, 2), (2**40, 1)])
def test_a_link_that_counts_other_records_is_refused(start: int, limit: int) -> None:
    """A link with a wrong count is refused before anything of that size is allocated."""
    link, _ = encoded(placed([b"one", b"two"]))
    as_if = _encode(placed([b"one", b"two"]), replace(link, start=start, limit=limit))

    for read in (decode_link, decode_data):
        with pytest.raises(CorruptionError, match="has 2 records, but its link declares"):
            read(as_if, path=PATH)


def test_a_fence_has_no_records_and_data_has_some() -> None:
    """A fence has no records and data has at least one. Neither passes for the other."""
    link, _ = encoded(placed([b"one"]))
    fence = FenceLink(epoch=link.epoch, slot=1, writer="w", id="f" * 16, next=None)
    with pytest.raises(CorruptionError, match="has 1 records, but its link declares 0"):
        decode_link(_encode(placed([b"one"]), fence), path=PATH)

    nothing = replace(link, limit=link.start)
    empty = _encode(SLOT_RECORDS.empty_table(), nothing)
    with pytest.raises(CorruptionError, match="its positions are not 1 to 0"):
        checked_data(empty, named(nothing, empty))


@pytest.mark.parametrize("positions", [[2, 3, 4], [1, 3, 2], [1, 2, 4], [1, 1, 3], [-1, 2, 3]])
def test_records_stand_where_their_link_says(positions: list[int]) -> None:
    """Records must have the positions of their link, one after another."""
    records = placed([b"a", b"b", b"c"])
    link, _ = encoded(records)
    moved = records.set_column(0, SLOT_RECORDS.field(0), pa.array(positions, pa.int64()))
    as_if = _encode(moved, replace(link, column_sum=column_sum(moved)))

    with pytest.raises(CorruptionError, match="its positions are not 1 to 3"):
        checked_data(as_if, named(link, as_if))
