"""Row hashes: equal values have equal hashes, different values differ, and the model agrees."""

from __future__ import annotations

import itertools
import math
import pickle
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.kernels import kernels
from kit.rowhash_model import (
    INT64,
    MASK,
    Pair,
    array_of,
    finish,
    fold,
    integer,
    row_hash,
    typed_columns,
    value_hash,
    values_of_a_type,
)
from tidelog.errors import CorruptionError, UsageError
from tidelog.rowhash import (
    Hashes,
    RowSum,
    bucket_of,
    check_supported,
    hash_rows,
    hash_rows_with_time,
    sums_of_rows,
    supported,
    weighted_sum,
)
from tidelog.rowhash import columns as module_of_columns
from tidelog.rowhash.xxh3 import BLOCK_ROWS

__all__ = ["kernels"]  # Each test is run by either.

AnyArray = Any  # pa.array infers its kind from data that hypothesis draws


def _pairs(*columns: AnyArray) -> list[Pair]:
    hashes = hash_rows(columns, rows=len(columns[0]))
    return list(zip(hashes.lo.tolist(), hashes.hi.tolist(), strict=True))


@settings(deadline=None)
@given(drawn=values_of_a_type())
def test_rows_hash_as_the_model_says(drawn: tuple[str, pa.DataType, list[Any]]) -> None:
    """The model is the definition; what runs is quick and full of tricks."""
    name, dtype, values = drawn

    assert _pairs(array_of(values, dtype)) == [
        row_hash(value_hash(value, name)) for value in values
    ]


@settings(deadline=None)
@given(drawn=values_of_a_type(), data=st.data())
def test_chunks_and_slices_do_not_matter(
    drawn: tuple[str, pa.DataType, list[Any]], data: st.DataObject
) -> None:
    """A row is hashed when it is written and again after a merge, in other chunks."""
    _, dtype, values = drawn
    cut = data.draw(st.integers(0, len(values)), label="cut")
    whole = array_of(values, dtype)
    around = pa.concat_arrays([whole, whole, whole])
    chunked = pa.chunked_array([around[len(values) : len(values) + cut], whole[cut:]])

    assert _pairs(chunked) == _pairs(whole)


@settings(deadline=None)
@given(values=st.lists(st.none() | st.text(max_size=30), max_size=12))
def test_encodings_of_strings_do_not_matter(values: list[str | None]) -> None:
    """DuckDB, Spark and Parquet readers each have a favourite encoding."""
    plain = pa.array(values, pa.string())
    around = pa.concat_arrays([pa.array(["x"]), plain])
    same: list[AnyArray] = [
        plain.cast(pa.large_string()),
        plain.cast(pa.string_view()),
        plain.dictionary_encode(),
        around.dictionary_encode()[1:],
        pa.chunked_array([around[1:].dictionary_encode()]),
    ]

    assert [_pairs(array) for array in same] == [_pairs(plain)] * len(same)


@settings(deadline=None)
@given(values=st.lists(st.none() | st.binary(min_size=5, max_size=5), max_size=12))
def test_encodings_of_binaries_do_not_matter(values: list[bytes | None]) -> None:
    """As with strings; and a fixed size is a promise about values, not part of one."""
    plain = pa.array(values, pa.binary())
    fixed = pa.array([b"other", *values], pa.binary(5))[1:]
    same = [plain.cast(pa.large_binary()), plain.cast(pa.binary_view()), fixed]

    assert [_pairs(array) for array in same] == [_pairs(plain)] * len(same)


@settings(deadline=None)
@given(values=st.lists(st.none() | st.integers(-128, 127), max_size=12))
def test_widening_a_column_does_not_matter(values: list[int | None]) -> None:
    """Schemas evolve by widening; old parts are not rewritten for that."""
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    if all(value is None or value >= 0 for value in values):
        integers += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    floats = [pa.float16(), pa.float32(), pa.float64()]
    decimals = [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(20, 2), pa.decimal256(40, 2)]
    as_floats = [None if value is None else np.float16(value / 4) for value in values]
    as_decimals = [None if value is None else Decimal(value).scaleb(-2) for value in values]

    for types, written in ((integers, values), (floats, as_floats), (decimals, as_decimals)):
        hashes = [_pairs(pa.array(written, dtype)) for dtype in types]
        assert hashes == [hashes[0]] * len(types)


def test_integers_beyond_63_bits_are_not_negative_ones() -> None:
    """The same 64 bits mean two numbers."""
    assert _pairs(pa.array([2**64 - 1], pa.uint64())) != _pairs(pa.array([-1], pa.int64()))
    assert _pairs(pa.array([2**64 - 1, 5], pa.uint64()))[1:] == _pairs(pa.array([5], pa.int8()))


def test_dates_are_days_in_either_width() -> None:
    """Parquet keeps days only, so a date64 comes back as a date32."""
    days = pa.array([-3, 0, None, 15_706], pa.int32())
    stamped = pa.array([-3 * 86_400_000, 0, None, 15_706 * 86_400_000 + 7], pa.int64())

    assert _pairs(days.view(pa.date32())) == _pairs(stamped.view(pa.date64()))


def test_a_time_zone_does_not_matter_but_a_unit_does() -> None:
    """A zone says how to show an instant; a unit says which one it is."""
    numbers = pa.array([-1, 0, 1_700_000_000], pa.int64())
    zoned = [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")]
    other = [pa.timestamp("s"), pa.timestamp("ns"), pa.duration("us"), pa.time64("us"), pa.int64()]

    expected = _pairs(numbers.view(zoned[0]))
    assert [_pairs(numbers.view(dtype)) for dtype in zoned] == [expected] * 3
    assert all(_pairs(numbers.view(dtype))[0] != expected[0] for dtype in other)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_all_nan_are_one_and_so_are_both_zeros(dtype: type[np.floating[Any]]) -> None:
    """Payloads of NaN and signs of zero get lost on the way through engines."""
    bits: Any = np.dtype(f"u{np.dtype(dtype).itemsize}")
    quiet = np.array([np.nan], dtype).view(bits)
    kinds = np.concatenate([quiet, quiet | 1, (-np.array([np.nan], dtype)).view(bits), quiet + 9])
    signalling = np.array([np.inf], dtype).view(bits) | 1
    kinds = np.concatenate([kinds, signalling])
    zeros = np.array([0.0, -0.0], dtype)

    assert len(set(_pairs(pa.array(kinds.view(dtype), from_pandas=False)))) == 1
    assert len(set(_pairs(pa.array(zeros)))) == 1
    assert _pairs(pa.array(zeros)) != _pairs(pa.array(kinds.view(dtype)))[:2]


def test_bytes_under_nulls_do_not_matter() -> None:
    """The bytes below a null are undefined in Arrow, and do not change a hash."""
    valid = pa.py_buffer(bytes([0b101]))
    numbers = [
        pa.Array.from_buffers(
            pa.int64(), 3, [valid, pa.py_buffer(np.array([1, junk, 3]).tobytes())]
        )
        for junk in (0, -7)
    ]
    floats = [
        pa.Array.from_buffers(
            pa.float64(), 3, [valid, pa.py_buffer(np.array([1.0, junk, 3.0]).tobytes())]
        )
        for junk in (0.0, math.nan)
    ]
    texts = [
        pa.Array.from_buffers(
            pa.string(),
            3,
            [
                valid,
                pa.py_buffer(np.array([0, 1, 1 + junk, 2 + junk], "i4").tobytes()),
                pa.py_buffer(text),
            ],
        )
        for junk, text in ((0, b"ac"), (2, b"abbc"))
    ]

    for first, second in (numbers, floats, texts):
        assert _pairs(first) == _pairs(second) == _pairs(pa.array(first.to_pylist()))


def test_what_lies_under_a_null_list_or_struct_does_not_matter() -> None:
    """A parent's null hides its children, whose own bits say otherwise."""
    mask = pa.array([False, True, False])
    children = [pa.array([1, junk, 3], pa.int64()) for junk in (2, None)]
    structs = [pa.StructArray.from_arrays([child], ["a"], mask=mask) for child in children]
    lists = [
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), child, mask=mask)
        for child in children
    ]
    fixed = [pa.FixedSizeListArray.from_arrays(child, 1, mask=mask) for child in children]

    assert _pairs(structs[0]) == _pairs(structs[1])
    assert _pairs(lists[0]) == _pairs(lists[1]) == _pairs(pa.array([[1], None, [3]]))
    assert _pairs(fixed[0]) == _pairs(fixed[1]) == _pairs(lists[0])


@settings(deadline=None)
@given(values=st.lists(st.none() | st.tuples(INT64, st.none() | INT64), max_size=8))
def test_kinds_of_lists_do_not_matter(values: list[tuple[int, int | None] | None]) -> None:
    """Large and fixed-size lists hold the same values as plain ones."""
    pairs = [None if value is None else list(value) for value in values]
    kinds = [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)]
    whole = [pa.array(pairs, dtype) for dtype in kinds]
    sliced = [pa.array([[7, 7], *pairs, None], dtype)[1:-1] for dtype in kinds]

    assert [_pairs(array) for array in [*whole, *sliced]] == [_pairs(whole[0])] * 6


def test_names_of_columns_and_fields_do_not_matter() -> None:
    """A renamed column keeps its contents, and a sum must keep its value."""
    one = pa.array([{"a": 1, "b": "x"}, None])
    other = pa.array([{"c": 1, "d": "x"}, None])

    assert _pairs(one) == _pairs(other)


@settings(deadline=None)
@given(drawn=values_of_a_type())
def test_null_differs_from_every_value(drawn: tuple[str, pa.DataType, list[Any]]) -> None:
    """Also from the empty string, 0, the empty list and a struct of nulls."""
    _, dtype, values = drawn
    present = [value for value in values if value is not None]
    null = _pairs(array_of([None], dtype))

    assert null == _pairs(pa.nulls(1))
    assert null[0] not in _pairs(array_of(present, dtype))


def test_empty_things_differ() -> None:
    """Empty text, empty bytes, zero, empty lists and nulls all have different hashes."""
    empties: list[AnyArray] = [
        pa.array([""]),
        pa.array([b""]),
        pa.array([0]),
        pa.array([False]),
        pa.array([0.0]),
        pa.array([[]], pa.list_(pa.null())),
        pa.array([[None]], pa.list_(pa.null())),
        pa.array([[None, None]], pa.list_(pa.null())),
        pa.array([{"a": None}], pa.struct([("a", pa.null())])),
        pa.array([{}], pa.struct([])),
        pa.nulls(1),
    ]

    assert len({_pairs(array)[0] for array in empties}) == len(empties)


def test_columns_keep_their_values_apart() -> None:
    """Where a value stands counts, and where one ends and the next begins."""
    a, b, ab, empty = (pa.array([text]) for text in ("a", "b", "ab", ""))

    rows = [(a, b), (b, a), (ab, empty), (empty, ab), (ab,), (a, b, empty)]
    assert len({_pairs(*row)[0] for row in rows}) == len(rows)


def test_lists_keep_order_and_nesting() -> None:
    """A sum over elements must still see where each of them stands."""
    dtype = pa.list_(pa.list_(pa.string()))
    values = [[["a", "b"]], [["b", "a"]], [["a"], ["b"]], [["ab"]], [["a", "b"], []], [[]], []]

    assert len(set(_pairs(pa.array(values, dtype)))) == len(values)


def test_rows_that_swap_a_value_change_the_sum() -> None:
    """A merge that mixes up values of two keys must not go unnoticed."""
    keys = pa.array(["k1", "k2"])
    right = hash_rows([keys, pa.array([1, 2])], rows=2)
    wrong = hash_rows([keys, pa.array([2, 1])], rows=2)
    ones = np.ones(2, np.int64)

    assert weighted_sum(right, ones).lo != weighted_sum(wrong, ones).lo
    assert weighted_sum(right, ones).hi != weighted_sum(wrong, ones).hi


@pytest.mark.parametrize("distinct", [3, 100_000])
def test_many_rows_hash_as_each_alone(distinct: int) -> None:
    """Blocks, and the guess that strings repeat, are there for speed only."""
    rows = 3 * BLOCK_ROWS + 17
    numbers = (np.arange(rows) * 7919) % distinct
    texts = pa.array([None if n == 1 else "x" * (n % 29) + str(n) for n in numbers.tolist()])
    values = pa.array(numbers)
    whole = _pairs(texts, values)

    for at in (0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 5, rows - 1):
        assert whole[at : at + 1] == _pairs(texts[at : at + 1], values[at : at + 1])
    assert len(set(whole)) == len(set(numbers.tolist()))


def test_a_dictionary_may_hold_nulls_and_be_bigger_than_its_use() -> None:
    """Both are legal, and readers of Parquet produce the second."""
    dictionary = pa.array(["a", None, "c", "d"])
    indices = pa.array([0, 1, None, 2, 0], pa.int8())
    encoded = pa.DictionaryArray.from_arrays(indices, dictionary)

    assert _pairs(encoded) == _pairs(pa.array(["a", None, None, "c", "a"]))
    assert _pairs(encoded[3:]) == _pairs(pa.array(["c", "a"]))
    nothing = pa.DictionaryArray.from_arrays(pa.nulls(2, pa.int32()), pa.array([], pa.string()))
    assert _pairs(nothing) == _pairs(pa.nulls(2))


def test_no_columns_and_no_rows() -> None:
    """A key may have no columns; a batch may have no rows."""
    assert len(hash_rows([], rows=3)) == 3
    assert len(hash_rows([pa.array([], pa.int64())], rows=0)) == 0
    assert weighted_sum(hash_rows([], rows=0), np.empty(0, np.int64)) == RowSum.zero()


@settings(deadline=None)
@given(
    updates=st.lists(st.tuples(st.text(max_size=3), st.integers(-5, 5)), max_size=20),
    data=st.data(),
)
def test_sums_ignore_order_and_cancel(updates: list[tuple[str, int]], data: st.DataObject) -> None:
    """A merge adds up diffs of equal rows and drops zeros; V must not move."""

    def total(of: list[tuple[str, int]]) -> RowSum:
        hashes = hash_rows([pa.array([row for row, _ in of], pa.string())], rows=len(of))
        return weighted_sum(hashes, np.array([diff for _, diff in of], np.int64))

    shuffled = data.draw(st.permutations(updates), label="shuffled")
    cut = data.draw(st.integers(0, len(updates)), label="cut")
    diffs: dict[str, int] = {}
    for row, diff in updates:
        diffs[row] = diffs.get(row, 0) + diff
    merged = [(row, diff) for row, diff in diffs.items() if diff]

    assert total(shuffled) == total(merged) == total(updates[:cut]) + total(updates[cut:])
    assert total(updates) - total(updates) == RowSum.zero()
    assert total([(row, -diff) for row, diff in updates]) == -total(updates)


def test_times_change_hashes_and_repeat() -> None:
    """T tells apart what V does not: the same rows at other times."""
    hashes = hash_rows([pa.array(["a", "a", "b"])], rows=3)
    timed = hash_rows_with_time(hashes, np.array([0, 1, 0]))
    swapped = hash_rows_with_time(hashes, np.array([1, 0, 0]))

    assert len({*timed.lo.tolist(), *hashes.lo.tolist()}) == 5
    assert timed.lo.tolist() == [swapped.lo[1], swapped.lo[0], swapped.lo[2]]
    expected = finish(fold((int(hashes.lo[1]), int(hashes.hi[1])), integer(1, "logical time")))
    assert (int(timed.lo[1]), int(timed.hi[1])) == expected


def test_buckets_are_stable_and_even() -> None:
    """Rows of one key must meet in one shard, and no shard may get much more than another."""
    hashes = hash_rows([pa.array(range(16_000))], rows=16_000)
    buckets = bucket_of(hashes, 16)

    counts = np.bincount(buckets, minlength=16)
    assert buckets.dtype == np.int64
    assert counts.min() > 850
    assert counts.max() < 1150
    assert bucket_of(hashes, 1).max() == 0
    with pytest.raises(UsageError, match="at least one bucket"):
        bucket_of(hashes, 0)


@pytest.mark.parametrize(
    "dtype",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.list_view(pa.int64()),
        pa.month_day_nano_interval(),
        pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.int64())))]),
        pa.dictionary(pa.int32(), pa.month_day_nano_interval()),
    ],
    ids=str,
)
def test_other_types_are_refused_by_name(dtype: Any) -> None:
    """Better at creation of a shard than at its first write."""
    assert not supported(dtype)
    with pytest.raises(UsageError, match="column 'odd' has type") as refused:
        check_supported(pa.schema([("fine", pa.int64()), ("odd", dtype)]))
    assert refused.value.facts["type"] == dtype
    with pytest.raises(UsageError, match="column 0 has type"):
        hash_rows([pa.nulls(1, dtype)], rows=1)


def test_lengths_must_agree() -> None:
    """A short column would leave rows half hashed."""
    hashes = hash_rows([pa.array([1, 2])], rows=2)

    with pytest.raises(UsageError, match="same number of rows"):
        hash_rows([pa.array([1, 2]), pa.array([1])], rows=2)
    with pytest.raises(UsageError, match="one number"):
        weighted_sum(hashes, np.ones(3, np.int64))
    with pytest.raises(UsageError, match="one number"):
        hash_rows_with_time(hashes, np.ones(1, np.int64))


@settings(deadline=None)
@given(lo=st.integers(0, MASK), hi=st.integers(0, MASK))
def test_sums_survive_their_bytes(lo: int, hi: int) -> None:
    """Descriptors of parts keep sums as 16 bytes."""
    total = RowSum(lo, hi)

    assert RowSum.from_bytes(total.to_bytes()) == total
    assert total.to_bytes()[:8] == lo.to_bytes(8, "little")
    assert total + -total == RowSum.zero()
    assert pickle.loads(pickle.dumps(total)) == total


def test_sums_refuse_garbage() -> None:
    """Stored bytes of another length are no sum."""
    with pytest.raises(CorruptionError, match="16 bytes"):
        RowSum.from_bytes(bytes(15))
    with pytest.raises(UsageError, match="lane"):
        RowSum(-1, 0)
    with pytest.raises(UsageError, match="lane"):
        RowSum(0, 2**64)


def test_large_diffs_wrap() -> None:
    """Sums are modulo 2^64 in each lane, on any machine."""
    hashes = Hashes(np.array([3], np.uint64), np.array([2**64 - 1], np.uint64))

    assert weighted_sum(hashes, np.array([-1])) == RowSum(2**64 - 3, 1)
    assert weighted_sum(hashes, np.array([2**62])) == RowSum(3 * 2**62, 3 * 2**62)


@settings(deadline=None)
@given(columns=typed_columns(), data=st.data())
def test_sums_by_blocks_equal_the_sums_of_all_hashes(
    columns: list[Any], data: st.DataObject
) -> None:
    """Neither the chunks of columns, nor their dictionaries, nor the size of blocks matter."""
    rows = len(columns[0])
    numbers = st.lists(st.integers(-(2**40), 2**40), min_size=rows, max_size=rows)
    times, diffs = (np.array(data.draw(numbers), np.int64) for _ in range(2))
    hashes = hash_rows(columns, rows=rows)
    wanted = (
        weighted_sum(hashes, diffs),
        weighted_sum(hash_rows_with_time(hashes, times), diffs),
    )
    chunked = [_cut(column, data.draw(st.sets(st.integers(0, rows)))) for column in columns]

    with patch.object(module_of_columns, "BLOCK_ROWS", data.draw(st.integers(1, 4))):
        found = sums_of_rows(chunked, times, diffs)
        again = hash_rows(chunked, rows=rows)

    assert found == wanted
    assert again.lo.tolist() == hashes.lo.tolist()
    assert again.hi.tolist() == hashes.hi.tolist()


def _cut(column: AnyArray, places: set[int]) -> AnyArray:
    """Return a column in chunks; text may have dictionaries."""
    bounds = sorted({0, *places, len(column)})
    chunks = [column.slice(a, b - a) for a, b in itertools.pairwise(bounds)]
    if pa.types.is_string(column.type) and len(chunks) > 1 and len(places) % 2:
        chunks = [chunk.dictionary_encode() for chunk in chunks]
    return pa.chunked_array(chunks, chunks[0].type if chunks else column.type)
