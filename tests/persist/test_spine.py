"""Spines against plain lists of batches: equal batches for any division into blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kit.shards import plain_part
from kit.work import calls_of
from tidelog.persist.states.batch import BLOCK, Batch, Spine, make_batch


def batch(lower: int, upper: int | None) -> Batch:
    last = lower if upper is None else upper - 1
    part = plain_part(path=f"p/{lower}-{last}", time_min=lower, time_max=last)
    return make_batch([part], lower=lower, upper=upper)


def end(upper: int | None) -> float:
    return float("inf") if upper is None else upper


@given(data=st.data(), size=st.integers(0, 4 * BLOCK))
def test_a_spine_is_the_list_of_its_batches(data: st.DataObject, size: int) -> None:
    """A spine equals the list after any appends and merges, and when it is built at once."""
    model: list[Batch] = []
    spine, upper = Spine(), 0
    for _ in range(size):
        lower = upper + data.draw(st.integers(0, 2))
        upper = lower + data.draw(st.integers(1, 3))
        model.append(batch(lower, upper))
        spine = spine.append(model[-1])
    for _ in range(data.draw(st.integers(0, 6)) if model else 0):
        first = data.draw(st.integers(0, len(model) - 1))
        last = data.draw(st.integers(first, min(len(model) - 1, first + 2 * BLOCK)))
        old = model[first : last + 1]
        new = data.draw(st.none() | st.just(batch(old[0].lower, old[-1].upper)))
        assert spine.within(old[0].lower, old[-1].upper) == old
        spine = spine.replace(old, new)
        model[first : last + 1] = [] if new is None else [new]
        if not model:
            break

    assert list(spine) == model
    assert len(spine) == len(model)
    assert spine == Spine.of(model)
    assert all(0 < len(block) <= BLOCK for block in spine.blocks)
    assert len(spine.blocks) <= 2 * (len(model) // BLOCK + 1)
    for at in (-1, 0, 1, upper // 2, upper - 1, upper, upper + 5):
        assert list(spine.until(at)) == [b for b in model if b.lower <= at]
        assert list(spine.after(at)) == [b for b in model if end(b.upper) > at + 1]


def test_a_finished_spine_has_an_end_that_is_past_all_times() -> None:
    """A search at any time includes the last batch of a finished shard."""
    spine = Spine.of([batch(0, 5), batch(5, None)])

    assert [b.upper for b in spine.after(10**15)] == [None]
    assert [b.upper for b in spine.within(0, None)] == [5, None]
    assert spine.within(0, 9) == [batch(0, 5)]


def test_a_change_costs_the_same_however_many_batches_there_are() -> None:
    """The cost of an append to the spine does not grow with the number of batches."""

    def cost(count: int) -> int:
        spine = Spine.of(batch(n, n + 1) for n in range(count))
        more = batch(count, count + 1)
        return calls_of(lambda: [spine.append(more) for _ in range(2_000)])

    assert cost(20_000) < 2 * cost(200)
