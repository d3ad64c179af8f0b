"""The ids of one kind of shard never equal those of another kind, whatever name a user chooses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.clock import SystemClock
from tidelog.core.ids import CATALOG_SHARD, NamedKind, name_of, named_id, new_shard_id
from tidelog.errors import UsageError

NAMES = st.from_regex(re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"), fullmatch=True)


@given(
    first=st.tuples(st.sampled_from(NamedKind), NAMES),
    second=st.tuples(st.sampled_from(NamedKind), NAMES),
)
def test_two_names_are_two_ids(first: tuple[NamedKind, str], second: tuple[NamedKind, str]) -> None:
    """Ids are equal if kind and name are equal, and an id returns its name."""
    one, other = named_id(*first), named_id(*second)

    assert (one == other) == (first == second)
    assert one not in (CATALOG_SHARD, new_shard_id(SystemClock()))
    assert [name_of(kind, one) for kind in NamedKind] == [
        first[1] if kind is first[0] else None for kind in NamedKind
    ]


@pytest.mark.parametrize(
    "key", [CATALOG_SHARD, "s" + "0" * 32, "user", "user.", "user./x", "xuser.a"]
)
def test_what_is_no_users_has_no_name(key: str) -> None:
    """A key of consensus that is no user's id has no name."""
    assert {name_of(kind, key) for kind in NamedKind} == {None}


@pytest.mark.parametrize("name", ["", ".x", "a/b", "x" * 129, "a b"])
def test_what_cannot_be_a_name_makes_no_id(name: str) -> None:
    """The error names the kind of thing that the name was for."""
    kinds = {
        NamedKind.SHARD: "a shard",
        NamedKind.TRANSACTIONS: "a transaction shard",
        NamedKind.KEYED: "a keyed log",
    }
    assert {*kinds} == {*NamedKind}
    for kind, what in kinds.items():
        with pytest.raises(UsageError, match=f"cannot be the name of {what}"):
            named_id(kind, name)
