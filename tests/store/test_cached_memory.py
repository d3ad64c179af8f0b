"""Objects in memory: the last used ones, up to a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.store.port import Object
from tidelog.store.wrappers.cached import ENTRY_BYTES, MemoryShelf, cost_bytes

KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("find"), KEYS, st.just(0)),
        st.tuples(st.just("drop"), KEYS, st.just(0)),
        st.tuples(st.just("keep"), KEYS, st.integers(0, 3 * ENTRY_BYTES)),
    ),
    max_size=60,
)


@given(steps=STEPS, bytes_max=st.integers(0, 6 * ENTRY_BYTES))
def test_it_is_a_list_from_which_the_first_leave(
    steps: list[tuple[str, str, int]], bytes_max: int
) -> None:
    """The memory is a list in order of last use, cut to the limit after each step."""
    shelf, model = MemoryShelf(bytes_max), list[tuple[str, Object]]()
    for number, (step, key, size_bytes) in enumerate(steps):
        known = dict(model).get(key)
        model = [pair for pair in model if pair[0] != key]
        if step == "find":
            assert shelf.find(key) == known
            model += [(key, known)] if known else []
        elif step == "drop":
            shelf.drop(key)
        else:
            found = Object(bytes(size_bytes), f"e{number}", number)
            shelf.keep(key, found)
            model += [(key, found)] if cost_bytes(found) <= bytes_max else []
        while sum(cost_bytes(found) for _, found in model) > bytes_max:
            del model[0]

        assert shelf.used_bytes == sum(cost_bytes(found) for _, found in model) <= bytes_max
    assert {key: shelf.find(key) for key in "abcdef"} == {
        key: dict(model).get(key) for key in "abcdef"
    }
