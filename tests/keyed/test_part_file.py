"""Parts as files: their contents for other readers, their layout, and writing in pieces."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.keyed_engine import keyed_logs, opened_log, small_keyed
from kit.keyed_engine import rows_of as rows_read
from kit.keyed_parts import EVER, Parts, Record, encoded, rows_of, table_of
from tidelog.errors import InvariantError
from tidelog.keyed.format import part_file
from tidelog.keyed.format.directory import DIRECTORY, decode_directory
from tidelog.keyed.format.pages import decode_page
from tidelog.keyed.format.part import PAGED, RunPart
from tidelog.keyed.format.part_file import RunPartWriter, encode_part, page_rows_for
from tidelog.keyed.format.records import KEYED_RECORDS, sort_records
from tidelog.keyed.maintenance import compactor
from tidelog.keyed.read import run_objects
from tidelog.keyed.values import Keys
from tidelog.wal.format.parquet_meta import PLAIN, pages_of, read_footer

MEBIBYTE = 1024 * 1024
MANY: list[Record] = [
    (b"key-%04d" % (number % 97), number, 1_000 + number, b"%d" % number * 5)
    for number in range(1, 20_001)
]


def test_parquet_readers_see_the_records_and_a_page_index(tmp_path: Path) -> None:
    """Spark and other Parquet readers see the records, and can skip pages by the index."""
    made = encoded(MANY)
    (tmp_path / "a.parquet").write_bytes(made.data)
    (tmp_path / "a.keys.parquet").write_bytes(made.directory)
    file = pq.ParquetFile(tmp_path / "a.parquet")
    columns = [
        file.metadata.row_group(group).column(column)
        for group in range(file.num_row_groups)
        for column in range(4)
    ]
    by_duck = asked(
        "SELECT key, sequence, timestamp_us, value "
        f"FROM read_parquet('{tmp_path / 'a.parquet'}') ORDER BY key, sequence"
    )
    keys = asked(
        f"SELECT key, first_row, rows, min_sequence, max_sequence "
        f"FROM read_parquet('{tmp_path / 'a.keys.parquet'}')"
    )
    counted = asked(
        "SELECT key, count(*), min(sequence), max(sequence) "
        f"FROM read_parquet('{tmp_path / 'a.parquet'}') GROUP BY key ORDER BY key"
    )

    assert rows_of(file.read().select(KEYED_RECORDS.names).cast(KEYED_RECORDS)) == sorted(MANY)
    assert by_duck == sorted(MANY)
    assert [(key, *others) for key, _, *others in keys] == counted
    assert all(column.has_offset_index for column in columns)
    assert [column.has_column_index for column in columns[:4]] == [True, False, True, False]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert [s.column_index for s in file.metadata.row_group(0).sorting_columns] == [0, 2]
    assert [f.nullable for f in file.schema_arrow] == [False] * 4


def asked(query: str) -> list[tuple[object, ...]]:
    found = duckdb.sql(query)
    return found.fetchall() if found is not None else []


def test_pages_are_where_the_directory_says() -> None:
    """A walk from page to page finds the places that the directory states."""
    made = encoded(MANY)
    head, _ = decode_directory(made.directory)
    layout, footer = head.layout, read_footer(made.data)
    for group, (rows, chunks) in enumerate(footer.groups):
        first, limit = (int(row) for row in layout.group_rows[group : group + 2])
        assert layout.group_span(group, group + 1) == (chunks[0].start, chunks[-1].limit)
        for column in range(len(PAGED)):
            at = chunks[column + 1].start
            places = layout.pages(column, first, limit)
            found = list(pages_of(made.data, chunks[column + 1]))
            assert [place.first_row for place in places[:1]] == [first]
            for place, page in zip(places, found, strict=True):
                at = place.span.limit
                assert page.values == place.rows
                assert page.encoding == PLAIN
                stored = made.data[place.span.start : place.span.limit]
                assert len(decode_page(stored, place.rows)) == page.size_bytes
            assert at == chunks[column + 1].limit
        assert rows == int(layout.group_rows[group + 1] - layout.group_rows[group])


def test_row_groups_end_where_keys_do() -> None:
    """A row group ends at the end of a key. A key in two groups would cost two more requests."""
    made = encoded(MANY)
    head, keys = decode_directory(made.directory)
    borders = head.layout.group_rows[1:-1].tolist()

    assert len(borders) == 2
    assert set(borders) <= set(keys.first_rows.tolist())
    assert all(8_192 - 207 < b - a <= 8_192 for a, b in pairwise([0, *borders]))


def test_a_key_of_more_than_half_a_row_group_is_cut() -> None:
    """A key of more than half a row group is split. Row groups would otherwise have any size."""
    records = [(b"a", n, 0, b"") for n in range(1, 101)]
    records += [(b"b", n, 0, b"") for n in range(101, 30_101)]
    made = encoded(records)
    head, _ = decode_directory(made.directory)

    assert np.diff(head.layout.group_rows).tolist() == [8_192, 8_192, 8_192, 5_524]


async def test_large_values_make_small_row_groups_and_pages() -> None:
    """Large values give small row groups and pages."""
    big = bytes(range(256)) * 4_096
    records = [(b"k%d" % (n % 2), n, n, big if n % 3 else b"") for n in range(1, 41)]
    parts = Parts()
    part = await parts.put(encoded(records))
    layout = decode_directory((await parts.inner.get(part.directory)).data)[0].layout
    for way in ("pages", "groups"):
        found = await parts.reader.read_key(part, b"k1", 5, 12, reader=way)
        assert rows_of(found) == [r for r in sorted(records) if r[0] == b"k1" and 5 <= r[1] < 12]

    assert layout.page_rows == 8
    assert layout.group_sizes.max() <= 9 * MEBIBYTE


async def test_large_keys_are_kept_whole() -> None:
    """A key of 16 KiB is stored whole and found. Parquet's statistics would truncate it."""
    records = [(b"x" * 16_383 + bytes([n % 5]), n, n, b"v") for n in range(1, 2_001)]
    parts = Parts()
    part = await parts.put(encoded(records))
    key = records[3][0]

    assert part.last_key == b"x" * 16_383 + b"\4"
    assert rows_of(await parts.reader.read_key(part, key, 0, EVER)) == [
        r for r in records if r[0] == key
    ]
    assert part.directory_bytes < 40_000


@pytest.mark.parametrize(
    ("size", "rows"), [(0, 1_024), (10, 1_024), (100, 512), (200, 256), (5_000, 8), (10**6, 8)]
)
def test_pages_have_about_64_kibibytes_of_values(size: int, rows: int) -> None:
    """A page has about 64 KiB of values, because a read of one record decodes a page."""
    records = [(b"k", n, 0, b"v" * size) for n in range(1, 11)]

    assert page_rows_for(table_of(records)) == rows


@pytest.mark.parametrize("piece", [1, 7, 97, 5_000, 70_000])
def test_what_is_written_in_pieces_is_the_same_part(piece: int) -> None:
    """The division of Spark tasks and large merges does not change the part."""
    table = sort_records(table_of(MANY if piece > 50 else MANY[:700]))
    whole = encode_part(table, path="run/a.parquet")
    writer = RunPartWriter("run/a.parquet", page_rows=1_024)
    for start in range(0, table.num_rows, piece):
        writer.write(table.slice(start, piece))
    assert writer.rows == table.num_rows
    made = writer.finish()

    assert made.data == whole.data
    assert made.part == whole.part
    assert made.directory == whole.directory


def test_a_writer_holds_little_more_than_its_bytes() -> None:
    """A writer holds little more than the encoded part, which may exceed a task's memory."""
    value = b"the same text in each record, so that the part itself is small" * 16
    writer = RunPartWriter("run/a.parquet")
    before = pa.total_allocated_bytes()
    most = 0
    for start in range(0, 200_000, 10_000):
        keys = [b"%06d" % n for n in range(start, start + 10_000)]
        numbers = list(range(1, 10_001))
        writer.write(table_of([(k, n, 0, value) for k, n in zip(keys, numbers, strict=True)]))
        most = max(most, pa.total_allocated_bytes() - before)
    made = writer.finish()

    assert made.part.rows == 200_000
    assert most < 80 * MEBIBYTE < 200_000 * len(value) // 2


@pytest.mark.parametrize(
    "pieces",
    [
        [[(b"b", 1, 0, b"")], [(b"a", 2, 0, b"")]],
        [[(b"a", 2, 0, b"")], [(b"a", 1, 0, b"")]],
        [[(b"a", 1, 0, b"")], [(b"a", 1, 0, b"")]],
        [[(b"b", 1, 0, b""), (b"a", 2, 0, b"")]],
        [[(b"a", 1, 0, b""), (b"a", 1, 0, b"")]],
        [],
    ],
)
def test_records_out_of_order_or_none_are_refused(pieces: list[list[Record]]) -> None:
    """A writer refuses unsorted records, which would give wrong answers, and empty parts."""
    writer = RunPartWriter("run/a.parquet")

    def write() -> None:
        for piece in pieces:
            writer.write(table_of(piece))
        writer.finish()

    with pytest.raises(InvariantError):
        write()


def test_what_a_state_knows_of_a_part_is_plain() -> None:
    """A descriptor survives msgpack, in which the state stores it."""
    part = encoded(MANY[:10]).part
    told = msgspec.msgpack.encode(part)

    assert msgspec.msgpack.decode(told, type=RunPart) == part
    assert (part.rows, part.min_sequence, part.max_sequence) == (10, 1, 10)
    assert (part.first_us, part.last_us) == (1_001, 1_010)
    assert (part.first_key, part.last_key) == (b"key-0001", b"key-0010")


def test_a_part_has_as_many_row_groups_as_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer reports that a part is full before its row groups exceed the limit."""
    monkeypatch.setattr(part_file, "GROUPS_MAX", 20)
    monkeypatch.setattr(part_file, "PIECE_ROWS", 80)
    monkeypatch.setattr(part_file, "GROUP_ROWS", 8)
    table = sort_records(table_of(MANY))
    writer = RunPartWriter("run/a.parquet")
    while not writer.is_full:
        writer.write(table.slice(writer.rows, 80))

    assert decode_directory(writer.finish().directory)[0].layout.groups <= 20


@pytest.mark.parametrize("most", [6, 7])
async def test_keys_are_listed_by_bytes_where_they_are_large(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of the key listing are limited by bytes: 8,192 keys may take 128 MiB."""
    keys = [b"%05d" % number + bytes(16_379) for number in range(100)]
    records: list[Record] = [(key, number + 1, 1, b"v") for number, key in enumerate(keys)]
    parts = Parts()
    part = await parts.put(encoded(records))
    monkeypatch.setattr(run_objects, "WHOLE_GROUPS_MAX", most)
    head, whole = decode_directory((await parts.inner.get(part.directory)).data)
    pages = [page async for page in parts.reader.keys(part, b"", None)]

    assert head.groups == 7
    assert head.first_keys == [b"0", b"00016", b"00032", b"00048", b"00064", b"0008", b"00096"]
    assert [whole.key(number) for number in range(100)] == keys
    assert [page.num_rows for page in pages] == [16] * 6 + [4]
    assert [key for page in pages for key in page.column("key").to_pylist()] == keys
    for key in (keys[0], keys[50], keys[99]):
        assert await parts.reader.count_key(part, key, 0, EVER) == 1
    asked = [span for name, span in parts.asked() if name == part.directory]
    assert len(asked) == (1 if most == 7 else 1 + 7 + 3)


async def test_what_would_be_too_many_row_groups_is_another_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A merge starts a new part at the limit of row groups, or it could never merge."""
    for name, value in (("GROUPS_MAX", 40), ("GROUP_ROWS", 4), ("PIECE_ROWS", 8)):
        monkeypatch.setattr(part_file, name, value)
    log = await opened_log(keyed_logs())
    with small_keyed():
        monkeypatch.setattr(compactor, "PART_ROWS", 10_000)
        for number in range(8):
            await log.append([(b"k%03d" % (40 * number + n), b"v") for n in range(40)])
            await log.compact()
        await log.compact(full=True)
        (run,) = log.state_handle.state.runs
        found = await rows_read(log.scan(Keys.all()))

    assert [part.rows for part in run.parts] == [115, 115, 90]
    assert len(found) == 320
    assert (await log.scrub()).is_clean
    await log.close()


GOLDEN = Path(__file__).parents[1] / "golden" / "keyed"


async def test_a_part_that_an_older_version_wrote_is_read() -> None:
    """A part written with Arrow 26 stays readable with the same contents."""
    told = msgspec.json.decode((GOLDEN / "part.json").read_bytes(), type=RunPart)
    parts = Parts()
    await parts.inner.put(told.path, (GOLDEN / "part.parquet").read_bytes())
    await parts.inner.put(told.directory, (GOLDEN / "part.keys.parquet").read_bytes())
    records = [
        r async for t in parts.reader.scan_keys(told, b"", None, 0, EVER) for r in rows_of(t)
    ]
    layout = decode_directory((await parts.inner.get(told.directory)).data)[0].layout
    file = pq.read_metadata(io.BytesIO((await parts.inner.get(told.path)).data))

    assert records == sorted(golden_records())
    for key in (b"", b"\0", b"ant", b"\xff"):
        expected = [r for r in sorted(golden_records()) if r[0] == key]
        assert rows_of(await parts.reader.read_key(told, key, 0, EVER, reader="pages")) == expected
    assert (layout.page_rows, layout.groups, file.num_row_groups) == (32, 1, 1)
    assert layout.first_sequences.tolist() == [0, 0, 166, 0]
    assert pq.read_table(GOLDEN / "part.keys.parquet").schema.equals(DIRECTORY)


def golden_records() -> list[Record]:
    """Return the records of `part.parquet`, which has pages of 32 rows."""
    keys = [b"", b"\0", b"ant", b"ant", b"ant", b"\xff"]
    return [
        (keys[number % 6], 10 + 3 * number, 1_700_000_000_000_000 + number, b"v%d" % number)
        for number in range(110)
    ]
