"""Parts: a reader accepts only the bytes that the writer wrote."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.shard_tables import KINDS, schema_of, shard_updates, table_of, updates
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.errors import CorruptionError
from tidelog.persist.format.parquet import ROW_GROUP_ROWS, decode_parquet, encode_parquet
from tidelog.persist.format.part import (
    INLINE_BYTES,
    Part,
    decode_bounds,
    decode_part,
    encode_inline,
    encode_part,
    key_box,
    may_overlap,
    part_path,
    sums_of,
)
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, shard_schema
from tidelog.persist.format.updates import consolidate, prepare_updates
from tidelog.rowhash import RowSum
from tidelog.testing.models import updates_of

PATH = "shard/s/part/00000000/x.parquet"


def prepared(table: pa.Table, schema: ShardSchema) -> pa.Table:
    return prepare_updates(table, schema, lower=Frontier.at(0), upper=Frontier.empty())


def encoded(table: pa.Table, schema: ShardSchema, *, inline: bool) -> tuple[Part, bytes]:
    part, data = encode_part(table, schema, path=PATH, is_sorted=False, inline=inline)
    return part, data if data is not None else part.inline or b""


def some_rows(count: int = 50) -> tuple[ShardSchema, pa.Table]:
    schema = schema_of(["string", "int64"], keys=1)
    rows = [(f"key {n % 7}", n, n % 5, 1) for n in range(count)]
    return schema, prepared(table_of(schema, rows), schema)


@given(drawn=shard_updates(), inline=st.booleans())
def test_a_part_reads_back(drawn: tuple[ShardSchema, pa.Table], inline: bool) -> None:
    """Each type reads back equal, inline or from Parquet, with a correct descriptor."""
    schema, table = drawn
    ready = prepared(table, schema)
    if not ready.num_rows:
        return

    part, data = encoded(ready, schema, inline=inline)

    assert (part.path is None) == (part.inline is not None) == inline
    found = decode_part(part, data, schema)
    assert updates_of(found) == updates_of(ready)
    assert found.schema.equals(schema.updates)
    assert part.rows == ready.num_rows
    assert part.diffs == sum(u.diff for u in updates_of(ready))
    assert part.time_min == min(u.time for u in updates_of(ready))
    assert part.time_max == max(u.time for u in updates_of(ready))
    assert (part.v, part.t) == sums_of(ready, schema)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_every_type_comes_back_from_parquet(kind: str, data: st.DataObject) -> None:
    """Parquet has its own form of each type, and must not change any value."""
    schema = schema_of([kind], keys=1)
    ready = prepared(data.draw(updates(schema, [kind], max_size=5)), schema)
    if not ready.num_rows:
        return

    part, stored = encoded(ready, schema, inline=False)

    assert updates_of(decode_part(part, stored, schema)) == updates_of(ready)


def test_small_parts_ride_in_the_state_and_large_ones_do_not() -> None:
    """A large state would make each commit slow."""
    schema, few = some_rows(3)
    _, many = some_rows(200_000)

    assert encoded(few, schema, inline=True)[0].path is None
    assert encoded(few, schema, inline=False)[0].path == PATH
    large, data = encoded(many, schema, inline=True)
    assert large.path == PATH
    assert large.inline is None
    assert len(data) > INLINE_BYTES


@pytest.mark.parametrize("inline", [True, False])
def test_no_flipped_bit_passes(inline: bool) -> None:
    """A flipped bit in any byte raises CorruptionError and returns no rows."""
    schema, table = some_rows()
    part, data = encoded(table.slice(0, 8), schema, inline=inline)
    dice = random.Random(1)

    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << dice.randrange(8)
        with pytest.raises(CorruptionError):
            decode_part(part, bytes(flipped), schema)


@pytest.mark.parametrize("inline", [True, False])
def test_no_other_bytes_pass(inline: bool) -> None:
    """Truncated, extended, empty or exchanged bytes raise CorruptionError."""
    schema, table = some_rows()
    part, data = encoded(table.slice(0, 8), schema, inline=inline)
    other, other_data = encoded(table.slice(8, 8), schema, inline=inline)

    for wrong in (b"", data[:-1], data[1:], data + b"\0", data[: len(data) // 2], other_data):
        with pytest.raises(CorruptionError):
            decode_part(part, wrong, schema)
    assert decode_part(other, other_data, schema).num_rows == 8


def test_bytes_that_were_never_a_part_are_corruption() -> None:
    """Bytes that are not a part raise CorruptionError, even if their checksum matches."""
    schema, table = some_rows(3)
    part, _ = encoded(table, schema, inline=False)
    elsewhere = schema_of(["int64"], keys=1)
    strange, strange_data = encoded(
        prepared(table_of(elsewhere, [(1, 0, 1)]), elsewhere), elsewhere, inline=False
    )

    for data in (b"", b"PAR1", b"not parquet at all", strange_data):
        claimed = msgspec.structs.replace(
            part, size_bytes=len(data), xxh3=xxhash.xxh3_128_digest(data)
        )
        with pytest.raises(CorruptionError):
            decode_part(claimed, data, schema)
    with pytest.raises(CorruptionError):
        decode_part(strange, strange_data, schema)


def test_parquet_that_others_read_has_what_they_need() -> None:
    """Spark reads the files: plain sorted columns, row groups and page checksums."""
    schema, table = some_rows(200_000)
    _, data = encoded(table, schema, inline=False)

    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    assert file.schema_arrow.names == ["c0", "c1", TIME, DIFF]
    assert [str(file.schema_arrow.field(n).type) for n in (TIME, DIFF)] == ["int64", "int64"]
    assert file.metadata.num_row_groups == 4
    column = file.metadata.row_group(0).column(1)
    assert column.compression == "ZSTD"
    assert column.has_column_index
    assert column.has_offset_index
    assert file.read().column("c0").to_pylist() == table.column("c0").to_pylist()


def codecs_of(table: pa.Table) -> dict[str, tuple[str, bool]]:
    """Return the codec of each column of an encoded table, and whether it has a dictionary."""
    group = pq.read_metadata(pa.BufferReader(encode_parquet(table))).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {c.path_in_schema: (c.compression, c.has_dictionary_page) for c in columns}


def test_a_large_column_of_noise_has_no_compression() -> None:
    """A codec takes as long for noise as for other values, and saves nothing."""
    rng = np.random.default_rng(1)
    rows = ROW_GROUP_ROWS
    words = pa.array([f"note {n}" for n in range(10_000)])
    table = pa.table(
        {
            "noise": rng.random(rows),
            "number": np.arange(rows) // 7,
            "nested": pa.array([{"noise": x} for x in rng.random(rows).tolist()]),
            "word": words.take(rng.integers(0, 10_000, rows)),
            "text": [f"note {n}" for n in rng.integers(0, 10**12, rows)],
        }
    )

    assert decode_parquet(encode_parquet(table)).equals(table)
    assert codecs_of(table) == {
        "noise": ("UNCOMPRESSED", False),
        "number": ("ZSTD", False),
        "nested.noise": ("UNCOMPRESSED", False),
        "word": ("ZSTD", True),
        "text": ("ZSTD", False),
    }
    assert {codec for codec, _ in codecs_of(table.slice(0, rows - 1)).values()} == {"ZSTD"}


@pytest.mark.parametrize("top", [["a", "b"], ["a", "a"], [1, 2], [0.5, 1.5], [True, False]])
@pytest.mark.parametrize("inner", ["a", 1, 0.5, True])
def test_a_column_may_have_the_path_of_a_nested_field(top: list[object], inner: object) -> None:
    """Parquet gives the column "s.w" and the field w of the column s one encoding."""
    table = pa.table({"s.w": top * 20, "s": [{"w": inner}] * 40})

    assert decode_parquet(encode_parquet(table)).equals(table)


def test_a_small_part_has_a_codec_that_starts_fast() -> None:
    """The start of zstd for each column takes longer than to decode a thousand values."""
    _, table = some_rows(8_193)
    assert {codec for codec, _ in codecs_of(table.slice(0, 8_192)).values()} == {"SNAPPY"}
    assert {codec for codec, _ in codecs_of(table).values()} == {"ZSTD"}


@given(drawn=shard_updates(), data=st.data())
def test_sums_do_not_know_how_updates_are_cut(
    drawn: tuple[ShardSchema, pa.Table], data: st.DataObject
) -> None:
    """The sums V and T of a table are the totals of its pieces, in any order."""
    schema, table = drawn
    order = data.draw(st.permutations(range(table.num_rows)), label="order")
    cut = data.draw(st.integers(0, table.num_rows), label="cut")
    shuffled = table.take(pa.array(order, pa.int64()))
    pieces = [sums_of(shuffled.slice(0, cut), schema), sums_of(shuffled.slice(cut), schema)]

    v, t = sums_of(table, schema)

    assert (pieces[0][0] + pieces[1][0], pieces[0][1] + pieces[1][1]) == (v, t)


@given(drawn=shard_updates())
def test_v_is_unchanged_by_advancing_and_cancelling_and_t_tells_times_apart(
    drawn: tuple[ShardSchema, pa.Table],
) -> None:
    """V proves merges, so it ignores times. T compares replicas, so it depends on them."""
    schema, table = drawn
    merged = consolidate([table], schema)
    late = table.set_column(
        table.column_names.index(TIME),
        schema.updates.field(TIME),
        pc.add(table.column(TIME), pa.scalar(100, pa.int64())),
    )

    assert sums_of(merged, schema) == sums_of(table, schema)
    assert sums_of(late, schema)[0] == sums_of(table, schema)[0]
    if merged.num_rows:
        assert sums_of(late, schema)[1] != sums_of(table, schema)[1]
    else:
        assert sums_of(table, schema) == (RowSum.zero(), RowSum.zero())


@given(data=st.data())
def test_a_part_that_is_passed_over_holds_no_wanted_key(data: st.DataObject) -> None:
    """Bounds must not exclude a part with the key, also for nulls, NaN and long strings."""
    kind = data.draw(st.sampled_from(sorted(KINDS)), label="kind")
    schema = schema_of([kind, "int8"], keys=1)
    stored = prepared(data.draw(updates(schema, [kind, "int8"])), schema)
    wanted = data.draw(updates(schema, [kind, "int8"]), label="wanted")
    if not stored.num_rows or not wanted.num_rows:
        return
    part, _ = encoded(stored, schema, inline=False)

    keys = {u.row[0] for u in updates_of(wanted)}
    shared = keys & {u.row[0] for u in updates_of(stored)}
    assert may_overlap(part, key_box(wanted, schema.key)) or not shared


def test_long_keys_are_no_bounds() -> None:
    """A bound does not contain a long key, because the state stores each descriptor."""
    schema = schema_of(["string", "binary"], keys=2)
    long = prepared(table_of(schema, [("x" * 100_000, b"y" * 100_000, 0, 1)]), schema)

    part, _ = encoded(long, schema, inline=False)

    assert len(part.key_bounds) < 1_000
    assert may_overlap(part, {"c0": ("a", "b")})


def test_bounds_say_what_they_are() -> None:
    """Bounds hold the least and the greatest value of each column that has an order."""
    schema = schema_of(["int64", "float64", "string"], keys=3)
    rows = [(3, 1.0, "b", 0, 1), (1, None, "c", 0, 1), (2, 2.0, "a", 0, 1)]
    part, _ = encoded(prepared(table_of(schema, rows), schema), schema, inline=False)

    assert decode_bounds(part) == {"c0": (1, 3), "c2": ("a", "c")}
    assert not may_overlap(part, {"c0": (4, 9)})
    assert may_overlap(part, {"c0": (3, 9)})
    assert not may_overlap(part, {"c0": (1, 3), "c2": ("d", "e")})
    assert may_overlap(part, {})


@pytest.mark.parametrize("dtype", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_bounds_of_times_beyond_python_are_told(dtype: Any) -> None:
    """Bounds may be times outside Python's range of years, because Arrow's range is wider."""
    schema = shard_schema(pa.schema([("k", dtype)]), key=["k"])
    unit = 1 if dtype == pa.date32() else 86_400_000_000
    numbers = [-2_000_000 * unit, 0, 3_000_000 * unit]

    def table(some: list[int]) -> pa.Table:
        integers = pa.array(some, pa.int64() if unit > 1 else pa.int32())
        column: Any = integers.cast(dtype)
        ones = pa.array([1] * len(some), pa.int64())
        return pa.table([column, ones, ones], schema=schema.updates)

    part, data = encoded(table(numbers), schema, inline=False)

    assert decode_part(part, data, schema).equals(table(numbers))
    assert decode_bounds(part) == {"k": (numbers[0], numbers[-1])}
    assert may_overlap(part, key_box(table([3_000_000 * unit]), ["k"]))
    assert not may_overlap(part, key_box(table([3_000_000 * unit + 1]), ["k"]))


def test_parts_lie_under_their_shard_and_epoch() -> None:
    """The path of a part contains its shard and epoch. The sweeper finds old parts by the epoch."""
    path = part_path(ShardId("s1"), 255, "u")

    assert path == "shard/s1/part/000000ff/u.parquet"


def test_a_descriptor_is_a_plain_value() -> None:
    """A descriptor survives serialization, because executors send descriptors to the driver."""
    schema, table = some_rows(3)
    for inline in (True, False):
        part, _ = encoded(table, schema, inline=inline)
        packed: Any = msgspec.msgpack.encode(part)

        assert msgspec.msgpack.decode(packed, type=Part) == part


@given(data=st.data())
def test_nothing_lies_behind_a_null(data: st.DataObject) -> None:
    """The encoder ignores memory behind nulls, so that equal rows give equal bytes."""
    _, table = data.draw(shard_updates())
    if not table.num_rows:
        return
    plain = pa.Table.from_pylist(table.to_pylist(), table.schema)
    columns = []
    for column in plain.columns:
        (chunk,) = column.chunks
        buffers = chunk.buffers()
        if chunk.null_count and pa.types.is_primitive(chunk.type) and chunk.type.bit_width >= 8:
            size = chunk.type.bit_width // 8
            assert buffers[1] is not None
            dirt = bytearray(buffers[1].to_pybytes())
            for row in range(len(chunk)):
                if not chunk[row].is_valid:
                    dirt[row * size : (row + 1) * size] = b"\xa7" * size
            chunk = pa.Array.from_buffers(chunk.type, len(chunk), [buffers[0], pa.py_buffer(dirt)])
        columns.append(chunk)
    dirty = pa.table(columns, schema=plain.schema)
    assert encode_inline(dirty) == encode_inline(plain)
    assert encode_inline(dirty.slice(0, 1)) == encode_inline(plain.slice(0, 1))
