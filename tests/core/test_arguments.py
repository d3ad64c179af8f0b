"""Lists of names in one text: names with commas are in double quotes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.arguments import joined_names, split_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", ["a", "b"]),
        (" a , b c ", ["a", "b c"]),
        ('"a, b",note', ["a, b", "note"]),
        ('"say ""x""" , b', ['say "x"', "b"]),
        ('note "free",b', ['note "free"', "b"]),
        ("a,,b", ["a", "", "b"]),
        ("a,", ["a", ""]),
        ("", [""]),
    ],
)
def test_names_are_split_at_commas_outside_of_quotes(text: str, names: list[str]) -> None:
    """An empty name stays, so that the caller refuses it."""
    assert split_names(text) == names


@given(st.lists(st.text(alphabet='a ,"é', min_size=1), min_size=1))
def test_joined_names_are_split_into_the_same(names: list[str]) -> None:
    """A message shows names in the form that an option reads."""
    assert split_names(joined_names(names)) == names
