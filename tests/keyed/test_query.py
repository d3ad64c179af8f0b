"""Queries of a keyed log: values that every edge shares."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidelog
from tidelog.errors import UsageError
from tidelog.keyed.values import KeyedQuery, Keys, chosen_keys

KEY = st.text("\x00\x01a\xfe\xff", max_size=3).map(lambda text: text.encode("latin-1"))


@given(key=KEY, chosen=KEY, other=KEY)
def test_each_choice_contains_its_keys_and_no_other(
    key: bytes, chosen: bytes, other: bytes
) -> None:
    """The sort bounds of a choice agree with its plain definition, at any byte."""
    first, last = sorted((chosen, other))

    assert Keys.one(chosen).contains(key) == (key == chosen)
    assert Keys.prefix(chosen).contains(key) == key.startswith(chosen)
    assert Keys.between(first, last).contains(key) == (first <= key < last)
    assert Keys.between(first, None).contains(key) == (first <= key)
    assert Keys.between(None, last).contains(key) == (key < last)
    assert Keys.all().contains(key)


def test_bytes_are_one_key_and_a_choice_is_a_plain_value() -> None:
    """A reader may pass bytes for one key. Equal choices compare and hash as equal."""
    assert Keys.of(b"a") == Keys.one(b"a")
    assert Keys.of(Keys.prefix(b"a")) == Keys.between(b"a", b"b")
    assert Keys.between(None, None) == Keys.prefix(b"") == Keys.all()
    assert len({Keys.one(b"a"), Keys.of(b"a"), Keys.between(b"a", b"a\0")}) == 2
    assert tidelog.Keys is Keys


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Keys.one("a"), "bytes, not str"),  # type: ignore[arg-type]
        (lambda: Keys.prefix(None), "bytes, not None"),  # type: ignore[arg-type]
        (lambda: Keys.between(b"b", b"a"), "is reversed"),
        (lambda: Keys.between(b"b", 3), "bytes, not int"),  # type: ignore[arg-type]
        (lambda: Keys.one(b"x" * 16_385), "at most 16384 bytes"),
        (lambda: Keys(b"a", b"b", b"c"), "use Keys.one"),
        (lambda: KeyedQuery(keys=b"a"), "must be a tidelog.Keys"),  # type: ignore[arg-type]
        (lambda: KeyedQuery(keys=Keys.all(), start=3, limit=2), "is reversed"),
        (lambda: KeyedQuery(keys=Keys.all(), rows=0), "of at least 1"),
        (lambda: chosen_keys(key=b"a", prefix=b"b"), "key and prefix exclude each other"),
        (lambda: chosen_keys(prefix=b"b", to_key=b"c"), "prefix and from_key and to_key exclude"),
    ],
)
def test_an_invalid_query_is_refused_when_it_is_made(
    make: Callable[[], object], message: str
) -> None:
    """No reader sends a request for a wrong query: the value cannot exist."""
    with pytest.raises(UsageError, match=message):
        make()


def test_parameters_choose_a_key_a_prefix_a_range_or_all() -> None:
    """The command line, HTTP and Spark share this parser."""
    assert chosen_keys() == Keys.all()
    assert chosen_keys(key=b"") == Keys.one(b"")
    assert chosen_keys(prefix=b"a") == Keys.prefix(b"a")
    assert chosen_keys(from_key=b"a") == Keys.between(b"a", None)
    assert chosen_keys(to_key=b"b") == Keys.between(None, b"b")
