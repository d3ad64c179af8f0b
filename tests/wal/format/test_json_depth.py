"""The depth of json texts, against the parser's own view of them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.wal.format.json import depth_of

VALUES = st.recursive(
    st.none() | st.text('[]{}"\\a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[{\\", max_size=2), inner),
    max_leaves=12,
)


def nested(value: Any) -> int:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max(map(nested, inner), default=0)


@given(value=VALUES)
def test_brackets_in_texts_nest_nothing(value: Any) -> None:
    """Text may hold brackets, quotes and backslashes."""
    assert depth_of(json.dumps(value).encode(), least=0) == nested(value)


def test_few_brackets_are_counted_and_not_looked_at() -> None:
    """If a text has too few brackets to reach the limit, they are only counted."""
    assert depth_of(b"[[[]]]", least=3) == 0
    assert depth_of(b"[[[[]]]]", least=3) == 4


def test_the_depth_of_an_endless_text_is_counted_once() -> None:
    """A text without an end, a few kilobytes long, must not take minutes."""
    for hostile in (b'"' + b'\\"' * 200_000, b'"\\' * 200_000, b'"' * 200_001):
        assert depth_of(b"[" * 200 + hostile, least=128) == 200
