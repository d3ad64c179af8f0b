"""JSON objects in wal3's form: other bytes raise CorruptionError with a clear reason."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptionError, UsageError
from tidelog.wal.format.json import DEPTH_MAX, check_of, parse, render


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Return an object with so many nested lists or objects in an unknown field."""
    return b'{"x":' + opening * (depth - 1) + closing * (depth - 1) + b"}"


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 990, 100_000])
def test_what_is_nested_too_deep_is_refused(depth: int) -> None:
    """Reading and writing refuse the same depth of nesting, at any depth of the call stack."""
    with pytest.raises(CorruptionError, match="nested deeper than 128"):
        parse(nested(depth), where="x")
    with pytest.raises(CorruptionError, match="nested deeper than 128"):
        parse(nested(depth, b'{"a":', b"}").replace(b":}", b":1}"), where="x")


def test_what_is_nested_as_deep_as_wal3_reads_is_read_and_written() -> None:
    """Nesting up to wal3's depth survives; brackets within texts do not count."""
    data = nested(DEPTH_MAX)
    many = render({"a": "[{" * 500, "b": ['"[', "\\", "\\\\[" * 300], "c": [[]] * 300})

    assert render(parse(data, where="x").found) == data
    assert check_of(parse(data, where="x").found)
    assert render(parse(many, where="x").found) == many


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('[]{}"\\a'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("[}", max_size=2), inner, max_size=3)
    ),
    max_leaves=30,
)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"x":' + b"9" * 10_000 + b"}", "Exceeds the limit"),
        (b'{"x":{"a":1,"a":2}}', "occurs twice"),
        (b'{"writer":"w","writer":"v"}', "occurs twice"),
        (b'{"x":"\\ud800"}', "lone surrogate"),
        (b'{"x":[{"\\uDfFf":1}]}', "lone surrogate"),
        (b'{"x":"\\ude00\\ud83d"}', "lone surrogate"),
        (b'{"x":"\xed\xa0\x80"}', "can't decode"),
        (b'\xef\xbb\xbf{"x":1}', "BOM"),
        (b'{"x":NaN}', "NaN is not JSON"),
        (b"[1]", "not an object"),
        (b"", "cannot be read as JSON"),
    ],
)
def test_what_is_no_object_is_refused(data: bytes, why: str) -> None:
    """Invalid JSON raises CorruptionError, also in ignored fields."""
    with pytest.raises(CorruptionError, match=why):
        parse(data, where="x")


def test_characters_of_two_escapes_are_read() -> None:
    """Two escapes of one character are one; an escaped backslash before a u is no escape."""
    assert parse(b'{"x":"\\ud83d\\ude00"}', where="x").text("x") == "\U0001f600"
    assert parse(b'{"x":"\\\\ud800"}', where="x").text("x") == "\\ud800"


def test_half_a_character_is_not_written() -> None:
    """A lone surrogate, as a command line may pass it, raises UsageError at the write."""
    for found in ({"writer": "a\ud800"}, {"\udfff": 1}):
        with pytest.raises(UsageError, match="lone surrogate"):
            render(found)
        with pytest.raises(UsageError, match="lone surrogate"):
            check_of(found)


@given(value=st.dictionaries(st.text(max_size=4), VALUES, max_size=4))
def test_objects_come_back(value: dict[str, Any]) -> None:
    """An object survives writing and reading, and Python's own reader agrees."""
    assert parse(render(value), where="x").found == value
    assert json.loads(render(value)) == value


@given(data=st.binary(max_size=40))
def test_garbage_is_refused(data: bytes) -> None:
    """Random bytes raise CorruptionError or decode to an object."""
    with suppress(CorruptionError):
        assert isinstance(parse(data, where="x").found, dict)
