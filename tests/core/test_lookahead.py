"""Read-ahead: concurrent, bounded, in order, and ended with its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.kernel.loop import run
from tidelog.core.lookahead import in_order


class Watch:
    """Work on items (size, seconds), which records how many items run at once."""

    def __init__(self, items: list[tuple[int, int]]) -> None:
        self.items = items
        self.begun = 0
        self.given = 0
        self.most = 0
        self.most_bytes = 0
        self.cancelled = 0
        self.is_closed = False

    async def source(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(len(self.items)):
                yield number
        finally:
            self.is_closed = True

    def size_of(self, number: int) -> int:
        return self.items[number][0]

    async def work(self, number: int) -> int:
        self.begun += 1
        held = range(self.given, self.begun)
        self.most = max(self.most, len(held))
        if len(held) > 1:
            self.most_bytes = max(self.most_bytes, sum(map(self.size_of, held)))
        try:
            await asyncio.sleep(self.items[number][1])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return number


@given(
    items=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), max_size=30),
    at_once=st.integers(1, 8),
    bytes_max=st.integers(1, 100),
    wanted=st.none() | st.integers(1, 8),
)
def test_results_come_in_order_and_within_bounds(
    items: list[tuple[int, int]], at_once: int, bytes_max: int, wanted: int | None
) -> None:
    """Results keep their order and the bounds, whatever the speed of reader and work."""
    watch = Watch(items)

    async def main() -> list[int]:
        found = []
        results = in_order(
            watch.source(),
            watch.work,
            size_of=watch.size_of,
            at_once=at_once,
            bytes_max=bytes_max,
            wanted=None if wanted is None else lambda: wanted,
        )
        async for number, result in results:
            assert number == result
            found.append(number)
            await asyncio.sleep(number % 3)
            watch.given += 1
        return found

    assert run(main, 1) == list(range(len(items)))
    assert watch.most <= min(at_once, wanted or at_once)
    assert watch.most_bytes <= bytes_max


def test_it_begins_with_one_and_then_goes_side_by_side() -> None:
    """The first item starts one task; a full read then runs up to eight tasks at once."""
    watch = Watch([(1, 1)] * 100)

    async def main() -> float:
        results = in_order(watch.source(), watch.work, size_of=watch.size_of)
        async with aclosing(results):
            assert await anext(results) == (0, 0)
            await asyncio.sleep(10)
            assert watch.begun == 1
            async for _ in results:
                pass
        return asyncio.get_running_loop().time()

    assert run(main, 1) <= 11 + 99 / 7 + 4


def test_who_stops_leaves_nothing_running() -> None:
    """A reader that stops early ends the work and its source."""
    watch = Watch([(1, n) for n in range(20)])

    async def main() -> int:
        results = in_order(watch.source(), watch.work, size_of=watch.size_of)
        async with aclosing(results):
            async for number, _ in results:
                if number == 7:
                    break
        return len(asyncio.all_tasks())

    assert run(main, 1) == 1
    assert watch.is_closed
    assert watch.cancelled >= 1


@pytest.mark.parametrize("where", ["source", "work"])
def test_an_error_is_told_when_its_turn_comes(where: str) -> None:
    """An error is raised after the results before it, without waiting for those after it."""
    watch = Watch([(1, 5 - n) for n in range(5)])

    async def source() -> AsyncGenerator[int, None]:
        async with aclosing(watch.source()) as numbers:
            async for number in numbers:
                if where == "source" and number == 3:
                    raise LookupError(where)
                yield number

    async def work(number: int) -> int:
        if where == "work" and number == 3:
            raise LookupError(where)
        return await watch.work(number)

    async def main() -> list[int]:
        found = list[int]()

        async def read() -> None:
            async for number, _ in in_order(source(), work, size_of=watch.size_of):
                found.append(number)

        with pytest.raises(LookupError, match=where):
            await read()
        assert len(asyncio.all_tasks()) == 1
        return found

    assert run(main, 1) == [0, 1, 2]
