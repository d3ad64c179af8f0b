"""Golden hashes: sums of these are stored, so no release may change one.

Run as a script to fill in the hashes of cases that have none; it never changes one that is there.
A case is ``{"type", "values", "hashes"}``: values as JSON, where decimals and odd floats are
strings, bytes are hex, and temporal values are the stored numbers; hashes as the 16 bytes of a
`RowSum` in hex, one a row of that single column.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidelog.rowhash import Hashes, RowSum, hash_rows, hash_rows_with_time

GOLDEN = Path(__file__).parents[1] / "golden" / "rowhash.json"

TYPES: dict[str, Any] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    **{f"int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    **{f"float{bits}": getattr(pa, f"float{bits}")() for bits in (16, 32, 64)},
    "decimal128(38, 2)": pa.decimal128(38, 2),
    "decimal256(76, 10)": pa.decimal256(76, 10),
    "date32": pa.date32(),
    "date64": pa.date64(),
    **{f"time32[{unit}]": pa.time32(unit) for unit in ("s", "ms")},
    **{f"time64[{unit}]": pa.time64(unit) for unit in ("us", "ns")},
    **{f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
    **{f"duration[{unit}]": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary<string>": pa.dictionary(pa.int32(), pa.string()),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "fixed_size_binary[3]": pa.binary(3),
    "list<int64>": pa.list_(pa.int64()),
    "large_list<string>": pa.large_list(pa.string()),
    "fixed_size_list<float64>[2]": pa.list_(pa.float64(), 2),
    "list<list<string>>": pa.list_(pa.list_(pa.string())),
    "struct<int32, string>": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "list<struct<int32>>": pa.list_(pa.struct([("day", pa.int32())])),
    "struct<>": pa.struct([]),
}


def _array_of(dtype: Any, values: list[Any]) -> Any:
    if pa.types.is_temporal(dtype):
        return pa.array(values, pa.int32() if dtype.bit_width == 32 else pa.int64()).view(dtype)
    return pa.array([None if value is None else _read(dtype, value) for value in values], dtype)


def _read(dtype: Any, value: Any) -> Any:
    if pa.types.is_float16(dtype):
        return np.float16(value)
    if pa.types.is_floating(dtype):
        return float(value)
    if pa.types.is_decimal(dtype):
        return Decimal(value)
    if "binary" in str(dtype):
        return bytes.fromhex(value)
    return value


def _hex_of(hashes: Hashes) -> list[str]:
    pairs = zip(hashes.lo.tolist(), hashes.hi.tolist(), strict=True)
    return [RowSum(lo, hi).to_bytes().hex() for lo, hi in pairs]


def _hashes_of(case: dict[str, Any]) -> list[str]:
    array = _array_of(TYPES[case["type"]], case["values"])
    return _hex_of(hash_rows([array], rows=len(array)))


def _rows_of(case: dict[str, Any]) -> Hashes:
    columns = [_array_of(TYPES[name], values) for name, values in case["columns"]]
    return hash_rows(columns, rows=len(columns[0]))


def _load() -> dict[str, Any]:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    return golden


@pytest.mark.parametrize("case", _load()["columns"], ids=lambda case: case["type"])
def test_values_hash_as_they_always_did(case: dict[str, Any]) -> None:
    """A changed hash would report every stored shard as corrupt."""
    assert _hashes_of(case) == case["hashes"]


def test_rows_and_times_hash_as_they_always_did() -> None:
    """The way columns and times are combined is as fixed as the hashes of values."""
    case = _load()["rows"]
    hashes = _rows_of(case)

    assert _hex_of(hashes) == case["hashes"]
    assert _hex_of(hash_rows_with_time(hashes, np.array(case["times"]))) == case["with_time"]


def test_every_type_has_a_golden_hash() -> None:
    """A type that is supported and not pinned could change unseen."""
    assert {case["type"] for case in _load()["columns"]} == set(TYPES)


def _fill() -> None:
    golden = _load()
    for case in golden["columns"]:
        case.setdefault("hashes", _hashes_of(case))
    rows = golden["rows"]
    hashes = _rows_of(rows)
    rows.setdefault("hashes", _hex_of(hashes))
    rows.setdefault("with_time", _hex_of(hash_rows_with_time(hashes, np.array(rows["times"]))))
    columns = ",\n".join(json.dumps(case, ensure_ascii=True) for case in golden["columns"])
    GOLDEN.write_text(f'{{"columns": [\n{columns}\n],\n"rows": {json.dumps(rows)}}}\n')


if __name__ == "__main__":
    _fill()
