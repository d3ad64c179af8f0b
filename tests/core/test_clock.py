"""Side-by-side calls: bounded, in order, and a failure that looks the same on every Python."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidelog.core.clock import run_all


async def test_results_are_in_the_order_of_the_calls() -> None:
    """The first call ends last, and its result is first."""

    def after(turns: int) -> Callable[[], Awaitable[int]]:
        async def call() -> int:
            for _ in range(turns):
                await asyncio.sleep(0)
            return turns

        return call

    assert await run_all([after(9), after(5), after(1)], at_once=3) == [9, 5, 1]


@pytest.mark.parametrize("at_once", [1, 2, 5])
async def test_no_more_run_at_once_than_allowed(at_once: int) -> None:
    """The most that ever ran together is the bound itself: neither more, nor fewer."""
    running, most = 0, 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await run_all([call] * 10, at_once=at_once)
    assert most == at_once


@pytest.mark.parametrize("calls", [1, 2, 5])
async def test_an_error_comes_out_bare_and_the_others_are_cancelled(calls: int) -> None:
    """Callers catch the error's own class, so it may not arrive in a group, however many ran."""
    ends: list[str] = []

    async def fails() -> None:
        raise KeyError("the first")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ends.append("cancelled")

    with pytest.raises(KeyError, match="the first"):
        await run_all([*[waits] * (calls - 1), fails], at_once=calls)
    assert ends == ["cancelled"] * (calls - 1)
