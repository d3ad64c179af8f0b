"""The window of sent slots: the acknowledged slots follow the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.wal.slot_protocol.pipeline import SendWindow


@given(
    base=st.integers(1, 3),
    kinds=st.lists(st.sampled_from(["data", "fence"]), max_size=8),
    data=st.data(),
)
def test_only_an_unbroken_run_is_acknowledged(
    base: int, kinds: list[str], data: st.DataObject
) -> None:
    """A writer acknowledges all slots below the first one without data, and none past a fence."""
    flight = SendWindow(base, base + len(kinds))
    slots = range(base, base + len(kinds))
    known: dict[int, str] = {}
    for slot in data.draw(st.permutations(slots)):
        note = flight.answer if kinds[slot - base] == "data" else flight.meet_fence
        note(slot)
        known[slot] = kinds[slot - base]

        reached = base
        while known.get(reached) == "data":
            reached += 1
        assert flight.committed == reached
        fences = [at for at, kind in known.items() if kind == "fence"]
        assert flight.is_over == (known.get(reached) == "fence")
        assert flight.has_room(100) == (not fences)
    if "fence" in kinds:
        assert flight.is_over, "all is answered, and the writer does not know that it is over"


@given(alpha=st.integers(1, 5), answers=st.lists(st.integers(0, 10), max_size=30))
def test_no_more_than_alpha_are_under_way(alpha: int, answers: list[int]) -> None:
    """At most alpha slots are in flight from the first open one: alpha fences suffice."""
    flight = SendWindow(1, 1)
    for number in answers:
        while flight.has_room(alpha):
            flight.next += 1
        assert flight.next - flight.committed == alpha
        slot = flight.committed + number % alpha
        if slot not in flight.done:
            flight.answer(slot)
        assert flight.next - flight.committed <= alpha
