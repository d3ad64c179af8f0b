"""Pages built byte by byte: the decoder refuses other bytes."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.parquet_bytes import Fields, plain, thrift
from tidelog.keyed.format.pages import SIZE_MAX, decode_page, integers_of, values_of
from tidelog.wal.format.parquet_meta import I32

VALUES = st.lists(st.binary(max_size=20), min_size=1, max_size=20)


def page(values: list[bytes], *, own: Fields | None = None, **changed: int | None) -> bytes:
    """Return a page of values, with some header fields changed or left out."""
    body = pa.compress(plain(values), codec="zstd", asbytes=True)
    crc = zlib.crc32(body)
    told: dict[str, int | None] = {
        "kind": 0,
        "size": len(plain(values)),
        "stored": len(body),
        "crc": crc - 2**32 if crc >= 2**31 else crc,
        **changed,
    }
    fields: dict[int, tuple[int, object]] = {
        number: (I32, value)
        for number, value in enumerate(told.values(), start=1)
        if value is not None
    }
    fields[5] = (12, own or {1: (I32, len(values)), 2: (I32, 0), 3: (I32, 3), 4: (I32, 3)})
    return thrift(fields) + body


@given(values=VALUES, data=st.data())
def test_values_of_a_page_come_back(values: list[bytes], data: st.DataObject) -> None:
    """Any range of the values decodes, including empty values."""
    start = data.draw(st.integers(0, len(values)))
    limit = data.draw(st.integers(start, len(values)))
    decoded = decode_page(page(values), len(values))

    assert decoded == plain(values)
    assert values_of(decoded, start, limit) == values[start:limit]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kind": 2}, "wrong type, encoding"),
        ({"own": {1: (I32, 3), 2: (I32, 0)}}, "wrong type, encoding"),
        ({"own": {1: (I32, 2), 2: (I32, 8)}}, "wrong type, encoding"),
        ({"own": {2: (I32, 0)}}, "wrong type, encoding"),
        ({"stored": 5}, "checksum"),
        ({"crc": 1}, "checksum"),
        ({"crc": None}, "checksum"),
        ({"size": 3}, "decompressed|size differs"),
        ({"size": 3_000}, "decompressed|size differs"),
        ({"size": SIZE_MAX + 1}, "too large"),
        ({"size": -1}, "too large"),
        ({"size": None}, "too large"),
    ],
)
def test_a_page_whose_header_is_another_is_refused(changed: dict[str, object], why: str) -> None:
    """A page with another header raises ValueError. The checksum covers only the body."""
    with pytest.raises(ValueError, match=why):
        decode_page(page([b"one", b"two"], **changed), 2)  # type: ignore[arg-type]


def test_a_page_that_is_cut_off_is_refused() -> None:
    """A page truncated at any byte raises ValueError."""
    whole = page([b"one", b"two"])
    for cut in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            decode_page(whole[:cut], 2)


@pytest.mark.parametrize("data", [b"", b"\1\0", b"\2\0\0\0a", plain([b"a"])])
def test_values_that_are_fewer_than_told_are_refused(data: bytes) -> None:
    """Fewer values than expected raise ValueError: two are expected, and less is there."""
    with pytest.raises(ValueError, match="values"):
        values_of(data, 0, 2)


def test_numbers_that_are_fewer_or_more_than_told_are_refused() -> None:
    """A wrong count of numbers raises ValueError, because all are read at once."""
    assert integers_of(bytes(7) + b"\x80" + bytes(8), 2).tolist() == [-(2**63), 0]
    with pytest.raises(ValueError, match="numbers"):
        integers_of(bytes(16), 3)
