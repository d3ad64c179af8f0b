"""The bytes of a record in a setsum, spelled out as the format pages define them."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.setsum import PRIMES, Setsum, record_item, setsum_of
from tidelog.wal.format import slot_object
from tidelog.wal.format.arrays import PIECE_BYTES, PIECE_ROWS
from tidelog.wal.format.slot_object import SLOT_RECORDS, setsum_of_slot_records
from tidelog.wal.format.wal3_records import RECORDS, setsum_of_records

Row = tuple[int, int, bytes | None, bytes | None, bytes]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.none() | st.binary(max_size=4),
        st.none() | st.binary(max_size=4),
        st.binary(max_size=9),
    ),
    max_size=12,
)


def slot_item(
    position: int, timestamp_us: int, stream: bytes | None, key: bytes | None, body: bytes
) -> bytes:
    mark = 0 if stream is None else len(stream) or 65_535
    if key is None:
        return struct.pack(">QQH", position, timestamp_us, mark) + (stream or b"") + body
    head = struct.pack(">QQHHI", position, timestamp_us, 65_534, mark, len(key))
    return head + (stream or b"") + key + body


def added_up(items: list[bytes], by: Any) -> Setsum:
    """Return the sum of the hashes, by the definition."""
    columns = [0] * 8
    for item in items:
        for at, number in enumerate(struct.unpack("<8I", by(item).digest())):
            columns[at] = (columns[at] + number) % PRIMES[at]
    return Setsum(tuple(columns))


def table_of(rows: list[Any], schema: pa.Schema) -> pa.Table:
    columns: list[Any] = [[row[at] for row in rows] for at in range(len(schema))]
    return pa.table(columns, schema=schema)


@given(rows=ROWS, cut=st.integers(0, 12))
def test_records_of_slots_are_summed_by_sha_256(rows: list[Row], cut: int) -> None:
    """The setsum of slot records uses SHA-256, and does not depend on the chunks of the table."""
    items = [slot_item(*row) for row in rows]
    wanted = added_up(items, hashlib.sha256)
    whole = table_of([(9, 9, b"a", b"k", b"b"), *rows], SLOT_RECORDS).slice(1)

    assert setsum_of_slot_records(whole) == wanted
    parts = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    assert setsum_of_slot_records(parts) == wanted
    assert setsum_of(items, item_hash="sha256") == wanted
    assert (setsum_of(items) == wanted) == (not rows)


U64 = st.integers(0, 2**64 - 1)


@given(rows=st.lists(st.tuples(U64, U64, st.binary(max_size=9)), max_size=12))
def test_records_of_wal3_are_summed_by_sha3_256(rows: list[tuple[int, int, bytes]]) -> None:
    """The setsum of wal3 records uses SHA3-256, up to wal3's last position and time."""
    items = [record_item(*row) for row in rows]

    assert setsum_of_records(table_of(rows, RECORDS)) == added_up(items, hashlib.sha3_256)


def test_the_sum_of_slots_is_pinned() -> None:
    """The setsum of slot records is stored: another formula would report damage everywhere."""
    rows: list[Row] = [
        (1, 7, None, None, b"one"),
        (2, 8, b"", None, b"two"),
        (3, 9, b"stream", None, b""),
    ]

    assert setsum_of_slot_records(table_of(rows, SLOT_RECORDS)).hex() == (
        "19014b91773141124c8ed02e9f91e0bfa5da5fbe40af173dffcb8b0a855cd8fa"
    )
    rows += [(4, 9, None, b"", b"four"), (5, 9, b"stream", b"key", b"five")]
    assert setsum_of_slot_records(table_of(rows, SLOT_RECORDS)).hex() == (
        "f64e926a2ea10ac50d954cacda1ee8f68e49ffa6ae83ef1cfeee90ead686bc5d"
    )


RECORD = st.tuples(
    st.integers(0, 3),
    st.integers(0, 3),
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=3),
    st.binary(max_size=12),
)


def slot_items(row: Row) -> list[bytes]:
    return [item for part in slot_object._items(table_of([row], SLOT_RECORDS)) for item in part]


@given(one=RECORD, other=RECORD, data=st.data())
def test_no_two_records_share_an_item(one: Row, other: Row, data: st.DataObject) -> None:
    """Two different records never have the same bytes, so none can replace another."""
    _, _, stream, key, body = other
    if data.draw(st.booleans(), label="the body begins as the item of a record goes on"):
        other = (one[0], one[1], stream, key, slot_item(*one)[18:] + body)
    items = [slot_items(row) for row in (one, other)]

    assert (items[0] == items[1]) == (one == other)


def test_records_are_laid_out_a_piece_at_a_time() -> None:
    """Records are encoded in pieces, limited by rows and bytes. The borders change no sum."""
    many: list[Row] = [
        (n, n, None, b"" if n % 3 else None, b"") for n in range(1, PIECE_ROWS * 2 + 2)
    ]
    large: list[Row] = [
        (n, n, b"s", b"k" if n % 2 else None, bytes(size))
        for n, size in enumerate((PIECE_BYTES - 1, 1, PIECE_BYTES * 2, 0, PIECE_BYTES, 3), start=1)
    ]

    for rows in (many, large, [*many, *large, *many]):
        wanted = added_up([slot_item(*row) for row in rows], hashlib.sha256)
        assert setsum_of_slot_records(table_of(rows, SLOT_RECORDS)) == wanted
