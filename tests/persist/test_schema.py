"""Schemas: the permitted columns, and one canonical type for equivalent types."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.shard_tables import KINDS, schemas
from tidelog.errors import CorruptionError, UsageError
from tidelog.persist.format.schema import (
    ShardSchema,
    canonical_type,
    decode_schema,
    shard_schema,
)


def one(dtype: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("c", dtype)])


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(types)


@given(drawn=schemas())
def test_a_schema_reads_back(drawn: tuple[ShardSchema, list[str]]) -> None:
    """A schema survives encoding, because other processes read a shard from its bytes alone."""
    schema, _ = drawn

    assert decode_schema(schema.encoded) == schema


@given(data=st.binary(max_size=200))
def test_garbage_is_no_schema(data: bytes) -> None:
    """Random bytes raise CorruptionError."""
    with pytest.raises(CorruptionError):
        decode_schema(data)


def test_flipped_bits_never_pass_for_something_else_unnamed() -> None:
    """Arrow reads bytes that it did not write. The result is a schema or CorruptionError."""
    whole = shard_schema(columns(a=pa.int64(), b=pa.string())).encoded
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        try:
            decode_schema(bytes(flipped))
        except CorruptionError:
            continue


def test_keys_come_first_in_the_order_they_are_named() -> None:
    """The key columns come first in the schema, in the given order. Parts are sorted by them."""
    given_ = columns(a=pa.int64(), b=pa.string(), c=pa.bool_())
    schema = shard_schema(given_, key=["c", "a"])

    assert schema.names == ["c", "a", "b"]
    assert schema.key == ["c", "a"]
    assert schema.updates.names == ["c", "a", "b", "_time", "_diff"]


@pytest.mark.parametrize(
    "same",
    [
        [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
        [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5)],
        [pa.timestamp("us"), pa.timestamp("s"), pa.timestamp("ns")],
        [pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="Europe/Berlin")],
        [pa.date32(), pa.date64()],
        [pa.time64("us"), pa.time32("s"), pa.time64("ns")],
        [pa.float32(), pa.float16()],
        [pa.decimal128(5, 2), pa.decimal32(5, 2), pa.decimal64(5, 2)],
        [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)],
        [pa.list_(pa.string()), pa.list_(pa.large_string())],
    ],
    ids=lambda same: str(same[0]),
)
def test_types_that_mean_the_same_are_one(same: list[pa.DataType]) -> None:
    """Equivalent types become one type. Writers with different libraries can then share a shard."""
    assert len({shard_schema(one(dtype)).data.field(0).type for dtype in same}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_canonical_type_stays_what_it_is(kind: str) -> None:
    """A canonical type maps to itself, so registering a stored schema again changes nothing."""
    dtype = KINDS[kind][0]

    assert canonical_type(dtype) == dtype
    assert canonical_type(canonical_type(dtype)) == canonical_type(dtype)


@pytest.mark.parametrize(
    "dtype",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.map_(pa.string(), pa.int64())),
        pa.duration("us"),
        pa.struct([pa.field("a", pa.duration("s"))]),
        pa.null(),
        pa.list_(pa.null()),
        pa.decimal256(60, 2),
        pa.struct([pa.field("a", pa.decimal256(60, 2))]),
        pa.decimal128(10, -3),
        pa.decimal128(3, 5),
        pa.list_(pa.decimal64(3, -1)),
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.struct([pa.field("", pa.int64())]),
    ],
    ids=str,
)
def test_what_has_no_equality_in_sql_is_refused(dtype: pa.DataType) -> None:
    """Contents are compared, so types without equality raise UsageError before any write."""
    with pytest.raises(UsageError):
        shard_schema(one(dtype))


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["a", "a"], None),
        (["a", "A"], None),
        (["_time"], None),
        (["_diff"], None),
        (["_TIME"], None),
        ([""], None),
        (["a\0b"], None),
        (["a"], ["b"]),
        (["a", "b"], ["a", "a"]),
        ([], None),
    ],
)
def test_names_that_would_be_confused_are_refused(names: list[str], key: list[str] | None) -> None:
    """SQL ignores case, and `_time` and `_diff` are tidelog's."""
    with pytest.raises(UsageError):
        shard_schema(pa.schema([pa.field(n, pa.int64()) for n in names]), key=key)
