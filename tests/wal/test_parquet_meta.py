"""Footers and pages of Parquet files: parsed as Arrow does, or refused."""

from __future__ import annotations

import io
import itertools
import os
from typing import Any

import arro3.core
import arro3.io
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.goldens import NAMES, objects
from kit.parquet_bytes import ColumnBytes, PageBytes, parquet_bytes, plain
from tidelog.wal.format.parquet_meta import (
    DICTIONARY_PAGE,
    ColumnChunk,
    Footer,
    SchemaLeaf,
    footer_bytes,
    pages_of,
    read_footer,
)

ROWS = 5_000
TABLE = pa.table(
    {
        "position": pa.array(range(ROWS), pa.int64()),
        "nested": pa.array([[{"a": n, "b": [n]}] for n in range(ROWS)]),
        "stream": pa.array([None if n % 3 else b"%d" % (n % 7) for n in range(ROWS)], pa.binary()),
        "body": pa.array([os.urandom(40) * (1 + n % 2) for n in range(ROWS)], pa.binary()),
    }
)


def written(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, **options)
    return sink.getvalue().to_pybytes()


def check_as_arrow_has_it(data: bytes) -> Footer:
    """Compare the footer and pages of a whole file with Arrow's reader."""
    footer, theirs = read_footer(data), pq.read_metadata(pa.BufferReader(data))
    assert footer.rows == theirs.num_rows
    paths = [theirs.schema.column(n).path for n in range(theirs.num_columns)]
    assert [leaf.name for leaf in footer.leaves] == [path.partition(".")[0] for path in paths]
    assert [leaf.is_flat for leaf in footer.leaves] == ["." not in path for path in paths]
    assert dict(footer.key_values) == (theirs.metadata or {})
    assert len(footer.groups) == theirs.num_row_groups
    for number, (rows, columns) in enumerate(footer.groups):
        group = theirs.row_group(number)
        assert rows == group.num_rows
        for place, column in enumerate(columns):
            chunk = group.column(place)
            assert column.values == chunk.num_values
            pages = list(pages_of(data, column))
            of_data = [page for page in pages if page.kind != DICTIONARY_PAGE]
            assert sum(page.values for page in of_data) == chunk.num_values
            assert (len(of_data) < len(pages)) == chunk.has_dictionary_page
            # Arrow also counts the headers, which are not compressed.
            headers = chunk.total_compressed_size - sum(page.stored_bytes for page in pages)
            sizes = sum(page.size_bytes for page in pages)
            assert chunk.total_uncompressed_size == headers + sizes
            assert headers > 0
    return footer


@pytest.mark.parametrize(
    ("compression", "version", "dictionary"),
    list(itertools.product(["none", "snappy", "zstd"], ["1.0", "2.0"], [True, False])),
)
def test_files_are_read_as_arrow_reads_them(
    compression: str, version: str, *, dictionary: bool
) -> None:
    """Files are parsed as Arrow does: many pages, row groups, statistics and checksums."""
    data = written(
        compression=compression,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=10_000,
        row_group_size=2_000,
        write_page_checksum=True,
    )

    footer = check_as_arrow_has_it(data)

    assert len(footer.groups) == 3
    assert footer.leaves[0] == SchemaLeaf("position", 2, is_flat=True)
    end = data[-footer_bytes(data) :]
    assert read_footer(end) == footer


def test_files_of_parquet_rs_are_read_as_arrow_reads_them() -> None:
    """Files of parquet-rs, with statistics in page headers, are parsed as Arrow does."""
    sink = io.BytesIO()
    flat: Any = TABLE.drop_columns(["nested"]).combine_chunks()
    arro3.io.write_parquet(arro3.core.Table.from_arrow(flat), sink, compression="snappy")

    check_as_arrow_has_it(sink.getvalue())
    fragments = [
        data for name in NAMES for key, data in objects(name).items() if key.endswith(".parquet")
    ]
    assert len(fragments) > 20
    for data in fragments:
        check_as_arrow_has_it(data)


@given(data=st.binary(max_size=80), length=st.integers(0, 90))
def test_garbage_is_no_footer(data: bytes, length: int) -> None:
    """Random bytes are refused or parsed as a tiny footer."""
    try:
        footer = read_footer(data + length.to_bytes(4, "little") + b"PAR1")
        assert footer.rows >= 0
    except ValueError:
        pass


BODY = PageBytes(body=plain([b"a", b"bc"]), values=2)


def body_of(*pages: PageBytes, values: int = 2, **options: Any) -> bytes:
    return parquet_bytes([ColumnBytes(name="body", pages=pages, **options)], rows=values)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a complete Parquet file"),
        (written()[:-1], "not a complete Parquet file"),
        (b"PAR1" + (99).to_bytes(4, "little") + b"PAR1", "not a complete Parquet file"),
        (body_of(BODY, values=-1), "missing or negative"),
        (body_of(BODY, type=-1), "missing or negative"),
    ],
)
def test_what_is_no_footer_is_refused(data: bytes, why: str) -> None:
    """A footer that is cut off, or has impossible numbers, is refused."""
    with pytest.raises(ValueError, match=why):
        read_footer(data)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (PageBytes(body=b"", values=3), "more values"),
        (PageBytes(body=b"", values=-1), "missing or negative"),
        (PageBytes(body=b"", values=2, size=-1), "missing or negative"),
        (PageBytes(body=b"", values=2, kind=1), "unknown type"),
        (PageBytes(body=b"", values=2, encoding=-1), "missing or negative"),
    ],
)
def test_pages_that_cannot_be_are_refused(page: PageBytes, why: str) -> None:
    """Impossible pages are refused, because Arrow might interpret them differently."""
    data = body_of(page)
    (_, (column,)) = read_footer(data).groups[0]

    with pytest.raises(ValueError, match=why):
        list(pages_of(data, column))


def test_pages_stay_within_their_column() -> None:
    """A page must be inside its column, and a column of limited pages inside its file."""
    data = body_of(BODY)
    (_, (column,)) = read_footer(data).groups[0]
    start, limit = column.start, column.limit

    assert [page.values for page in pages_of(data, column)] == [2]
    with pytest.raises(ValueError, match="larger than its column"):
        list(pages_of(data, ColumnChunk(2, start, limit - 1)))
    with pytest.raises(ValueError, match="outside the file"):
        list(pages_of(data, ColumnChunk(2, start, len(data) + 1)))
    with pytest.raises(ValueError, match="outside the file"):
        list(pages_of(data, ColumnChunk(2, start, start - 1)))
    many = body_of(*[PageBytes(body=b"", values=0)] * 300, BODY)
    (_, (column,)) = read_footer(many).groups[0]
    with pytest.raises(ValueError, match="far too many pages"):
        list(pages_of(many, column))
