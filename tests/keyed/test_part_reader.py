"""Parts agree with a plain list of their records, for each reader."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.keyed_parts import EVER, Parts, Record, encoded, rows_of
from tidelog.keyed.format import directory as directory_format
from tidelog.keyed.format import part_file
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.read import group_reader, run_objects
from tidelog.keyed.read.part_reader import ReaderChoice, RunPartReader

WAYS: Final[tuple[ReaderChoice, ...]] = ("pages", "groups", "auto")
KEYS = st.one_of(
    st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a\0", b"ab", b"\xfe", b"\xff", b"\xff\xff"]),
    st.binary(max_size=3),
    st.binary(min_size=20, max_size=24),
)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Draw records of a few keys, some with many more than others, at sequences with gaps."""
    keys = draw(st.lists(KEYS, min_size=1, max_size=8, unique=True))
    chosen = draw(
        st.one_of(
            st.lists(st.sampled_from(keys), min_size=1, max_size=120),
            st.lists(st.sampled_from(keys[:2]), min_size=40, max_size=150),
        )
    )
    gaps = draw(st.sampled_from([(1, 1, 1), (1, 3, 7), (1, 2**40, 5)]))
    times = draw(st.sampled_from([(0, 0), (5, 9), (7, -3)]))
    value = draw(st.sampled_from([b"", b"v", b"value " * 9]))
    records, sequence = list[Record](), draw(st.sampled_from([1, 2**50]))
    for number, key in enumerate(chosen):
        sequence += gaps[number % 3]
        us = 1_000 + number * times[0] + times[number % 2]
        records.append((key, sequence, us, value + str(number % 4).encode()))
    return records


SIZES = st.tuples(
    st.sampled_from([4, 16, 64]),  # Rows of a row group.
    st.sampled_from([1, 3, 8]),  # Rows of a page.
    st.sampled_from([1, 3, 8_192]),  # Keys of a piece of the directory.
    st.sampled_from([0, 2**20]),  # Bytes of a directory that is read whole.
    st.sampled_from([60, 2**23]),  # Bytes of a row group.
    st.sampled_from([8, 65_536]),  # Rows of a table.
)


async def scanned(reader: RunPartReader, part: RunPart, *args: Any) -> list[Record]:
    return [row async for table in reader.scan_keys(part, *args) for row in rows_of(table)]


@settings(max_examples=150, deadline=None)
@given(records=record_lists(), sizes=SIZES, data=st.data())
def test_every_reader_agrees_with_a_plain_list(
    records: list[Record], sizes: tuple[int, ...], data: st.DataObject
) -> None:
    """Each reader gives the rows and counts of a plain list."""
    rows, page_rows, piece_keys, whole_bytes, group_bytes, table_rows = sizes
    with (
        mock.patch.multiple(
            part_file, GROUP_ROWS=rows, GROUP_BYTES=group_bytes, PIECE_ROWS=50, GROUPS_MAX=10_000
        ),
        mock.patch.object(directory_format, "GROUP_KEYS", piece_keys),
        mock.patch.object(run_objects, "WHOLE_BYTES_MAX", whole_bytes),
        mock.patch.object(group_reader, "TABLE_ROWS", table_rows),
    ):
        asyncio.run(compare(records, page_rows, data))


async def compare(records: list[Record], page_rows: int, data: st.DataObject) -> None:
    parts = Parts()
    part = await parts.put(encoded(records, page_rows=page_rows))
    ordered = sorted(records)
    sequences = sorted({r[1] for r in records})
    edges = st.sampled_from(
        [0, EVER, *sequences, *(s + 1 for s in sequences), *(s - 1 for s in sequences)]
    )
    key = data.draw(st.one_of(st.sampled_from(ordered).map(lambda r: r[0]), KEYS), label="key")
    start, limit = data.draw(st.tuples(edges, edges).map(sorted), label="range")
    most = data.draw(st.sampled_from([None, 0, 1, 2, 5, 1000]), label="rows_max")
    newest_first = data.draw(st.booleans(), label="newest_first")
    expected = [r for r in ordered if r[0] == key and start <= r[1] < limit]
    shown = (expected[::-1] if newest_first else expected)[:most]

    for way in WAYS:
        found = await parts.reader.read_key(
            part, key, start, limit, rows_max=most, newest_first=newest_first, reader=way
        )
        assert rows_of(found) == shown, way
    assert await parts.reader.count_key(part, key, start, limit) == len(expected)
    least, greatest = await parts.reader.bound_key(part, key, start, limit)
    assert least <= len(expected) <= greatest
    await compare_many(parts, part, ordered, data, (start, limit))


async def compare_many(
    parts: Parts,
    part: RunPart,
    ordered: list[Record],
    data: st.DataObject,
    sequences: tuple[int, ...],
) -> None:
    start, limit = sequences
    first, until = data.draw(st.tuples(KEYS, KEYS).map(sorted), label="keys")
    last: bytes | None = data.draw(st.sampled_from([until, None]), label="last")
    after = data.draw(st.one_of(st.none(), KEYS), label="after")
    within = [r for r in ordered if first <= r[0] and (last is None or r[0] < last)]
    assert await scanned(parts.reader, part, first, last, start, limit) == [
        r for r in within if start <= r[1] < limit
    ]
    listed = [
        (row["key"], row["rows"], row["min_sequence"], row["max_sequence"])
        async for table in parts.reader.keys(part, first, last, after=after)
        for row in table.to_pylist()
    ]
    wanted = sorted({r[0] for r in within if after is None or r[0] > after})
    of_key = [[r[1] for r in ordered if r[0] == key] for key in wanted]
    assert listed == [(key, len(s), s[0], s[-1]) for key, s in zip(wanted, of_key, strict=True)]
    time_us = data.draw(st.sampled_from([0, *(r[2] for r in ordered), 2**62]), label="time")
    later = [r[1] for r in ordered if r[2] >= time_us]
    assert await parts.reader.first_at(part, time_us) == (min(later) if later else None)
