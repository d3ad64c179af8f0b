"""Strategies: columns and tables of every type that a shard may have."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, shard_schema

_NAIVE = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001 - naive is the point

# A type and its values. The ranges are small, so that equal values occur.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int16": (pa.int16(), st.sampled_from([-(2**15), 0, 2**15 - 1])),
    "int32": (pa.int32(), st.sampled_from([-(2**31), -1, 0, 2**31 - 1])),
    "int64": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "uint16": (pa.uint16(), st.sampled_from([0, 2**16 - 1])),
    "uint32": (pa.uint32(), st.sampled_from([0, 2**31, 2**32 - 1])),
    "uint64": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (
        pa.float64(),
        st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -1.5, 1e300, 5e-324]),
    ),
    "decimal": (pa.decimal128(12, 2), st.decimals(-(10**6), 10**6, places=2)),
    "wide decimal": (pa.decimal128(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
    "string": (pa.string(), st.text(max_size=4) | st.sampled_from(["", "a", "é", "\x00", "日本"])),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "date": (pa.date32(), st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us"), _NAIVE),
    "instant": (pa.timestamp("us", tz="UTC"), _NAIVE.map(lambda d: d.replace(tzinfo=dt.UTC))),
    "list": (
        pa.list_(pa.field("item", pa.int64())),
        st.lists(st.none() | st.integers(-1, 1), max_size=3),
    ),
    "list of floats": (
        pa.list_(pa.field("item", pa.float64())),
        st.lists(st.sampled_from([0.0, -0.0, float("nan"), 1.0]), max_size=2),
    ),
    "struct": (
        pa.struct([pa.field("a", pa.string()), pa.field("b", pa.float64())]),
        st.fixed_dictionaries(
            {
                "a": st.none() | st.sampled_from(["", "x"]),
                "b": st.none() | st.sampled_from([0.0, -0.0, float("nan")]),
            }
        ),
    ),
    "list of structs": (
        pa.list_(pa.field("item", pa.struct([pa.field("a", pa.int64())]))),
        st.lists(
            st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 1)}), max_size=2
        ),
    ),
}
TIMES = st.integers(0, 5)
DIFFS = st.sampled_from([1, 1, -1, 2])


def schema_of(kinds: list[str], *, keys: int) -> ShardSchema:
    """Return a schema with a column ``c0``, ``c1``, ... of each kind, the first ones its key."""
    fields = [pa.field(f"c{i}", KINDS[kind][0]) for i, kind in enumerate(kinds)]
    return shard_schema(pa.schema(fields), key=[f"c{i}" for i in range(keys)])


@st.composite
def schemas(draw: st.DrawFn) -> tuple[ShardSchema, list[str]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    return schema_of(kinds, keys=draw(st.integers(0, len(kinds)))), kinds


@st.composite
def updates(
    draw: st.DrawFn, schema: ShardSchema, kinds: list[str], *, max_size: int = 12
) -> pa.Table:
    """Return updates with repeated rows, at times from 0 to 5."""
    values = [st.none() | KINDS[kind][1] for kind in kinds]
    rows = draw(st.lists(st.tuples(*values), min_size=1, max_size=4))
    picked = draw(st.lists(st.tuples(st.sampled_from(rows), TIMES, DIFFS), max_size=max_size))
    return table_of(schema, [(*row, time, diff) for row, time, diff in picked])


@st.composite
def shard_updates(draw: st.DrawFn, *, max_size: int = 12) -> tuple[ShardSchema, pa.Table]:
    schema, kinds = draw(schemas())
    return schema, draw(updates(schema, kinds, max_size=max_size))


def table_of(schema: ShardSchema, rows: list[tuple[Any, ...]]) -> pa.Table:
    """Return a table of updates from tuples of the data columns, time and diff."""
    names = [*schema.names, TIME, DIFF]
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], schema=schema.updates
    )
