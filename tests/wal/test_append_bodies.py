"""Bodies of an append: wrong ones are refused before they enter the queue."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidelog.errors import UsageError
from tidelog.wal.append import bodies as sizes
from tidelog.wal.append.bodies import array_of, checked, joined


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ("text", "put it into a list"),
        (b"bytes", "put it into a list"),
        (bytearray(b"bytes"), "put it into a list"),
        (["text"], "not str"),
        ([b"bytes", "text", 7], "not int or str"),
        ([1, 2], "not int"),
        ([None], "not NoneType"),
        ([[b"nested"]], "not list"),
        (7, "a list of bytes"),
        (pa.array([b"x"], pa.binary()), "append_arrow"),
        (pa.chunked_array([[b"x"]], pa.binary()), "append_arrow"),
    ],
)
def test_what_is_no_list_of_bytes_is_refused(records: Any, says: str) -> None:
    """Only a list of bytes is accepted: a str is a sequence too, and PyArrow takes text."""
    with pytest.raises(UsageError, match=says):
        array_of(records)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (pa.chunked_array([[b"x"]], pa.binary()), "combine_chunks"),
        (pa.array(["x"]), "not string"),
        (pa.array([b"x"], pa.large_binary()), "not large_binary"),
        (pa.array([b"x"], pa.binary(1)), "not fixed_size_binary"),
        (pa.array([b"x"], pa.binary_view()), "not binary_view"),
        (pa.array([b"x"], pa.binary()).dictionary_encode(), "not dictionary"),
        (pa.array([1, 2]), "not int64"),
        (pa.array([b"x", None], pa.binary()), "not null"),
        (pa.array([], pa.binary()), "at least one"),
        ([b"x"], "call append"),
        (None, "call append"),
    ],
)
def test_what_is_no_array_of_bytes_is_refused(array: Any, says: str) -> None:
    """Only a binary array is accepted, because the queue joins the arrays of several appends."""
    with pytest.raises(UsageError, match=says):
        checked(array)


def test_a_list_of_bytes_is_taken() -> None:
    """An append takes any iterable of bytes, and values that behave like bytes."""

    class Name(bytes):
        """A subclass of bytes."""

    wanted = [b"a", b"", b"\x00\xff"]
    assert array_of(wanted).to_pylist() == wanted
    assert array_of(tuple(wanted)).to_pylist() == wanted
    likes: list[Any] = [bytearray(b"a"), memoryview(b""), Name(b"\x00\xff")]
    assert array_of(likes).to_pylist() == wanted


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record and one append have a maximal size, because Arrow offsets end at 2 GiB."""
    monkeypatch.setattr(sizes, "RECORD_BYTES_MAX", 100)
    monkeypatch.setattr(sizes, "APPEND_BYTES_MAX", 1_000)

    assert checked(pa.array([bytes(100)] * 10, pa.binary())), "what is said, and not a byte less"
    with pytest.raises(UsageError, match="a record has over 100 bytes"):
        checked(pa.array([b"x", bytes(101)], pa.binary()))
    with pytest.raises(UsageError, match="over 1000 bytes in total"):
        checked(pa.array([*[bytes(100)] * 10, b"x"], pa.binary()))


def test_more_than_one_array_can_hold_is_refused() -> None:
    """More bodies than one array can hold raise UsageError before they are copied."""
    large = bytes(60 << 20)

    with pytest.raises(UsageError, match="in total: split it"):
        array_of([large] * 36)


def test_a_slice_keeps_no_more_than_it_counts() -> None:
    """A small slice is copied, so that waiting appends keep no more memory than they count."""
    whole = pa.array([bytes(1_000)] * 1_000, pa.binary())

    one = checked(whole[5:6])
    assert one.to_pylist() == [bytes(1_000)]
    assert one.get_total_buffer_size() < 2_000
    half = checked(whole[:600])
    assert half.get_total_buffer_size() == whole.get_total_buffer_size(), "most of it: no copy"


def test_joined_bodies_are_those_of_all_in_order() -> None:
    """Joined bodies keep their order, and a single array is not copied."""
    one, other = pa.array([b"a", b"b"], pa.binary()), pa.array([b"c"], pa.binary())

    assert joined([one, other]).to_pylist() == [b"a", b"b", b"c"]
    assert joined([one]) is one
