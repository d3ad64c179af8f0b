"""The contract of every store for concurrent writers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tidelog.core.clock import SystemClock
from tidelog.errors import ContentionError, ObjectExists
from tidelog.store import conditional
from tidelog.store.port import Store

CLOCK = SystemClock()


async def together(calls: Sequence[Awaitable[str]]) -> list[str | BaseException]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_one_of_many_creators_wins(open_again: Callable[[], Store], kind: str) -> None:
    """One of many writers creates a slot; otherwise a log would have two records at a position."""
    rounds = 2 if kind == "seaweed" else 12
    stores = [open_again() for _ in range(16)]

    for number in range(rounds):
        key = f"slot/{number}"
        results = await together(
            [
                store.put(key, f"writer {index}".encode(), if_absent=True)
                for index, store in enumerate(stores)
            ]
        )
        winners = [index for index, result in enumerate(results) if isinstance(result, str)]
        assert len(winners) == 1
        assert (await stores[0].get(key)).data == f"writer {winners[0]}".encode()
        assert {type(result) for result in results} <= {str, ObjectExists, ContentionError}


async def test_replacements_lose_no_increment(open_again: Callable[[], Store], kind: str) -> None:
    """Concurrent writers add one by conditional replaces, and the counter has every increment."""
    writers, increments = 6, 4

    async def increment(store: Store, name: str) -> None:
        done = 0
        while done < increments:
            found = await store.get("counter")
            count = int(found.data.split()[0]) + 1
            body = f"{count} {name} {done}".encode()
            try:
                await conditional.replace(store, "counter", body, e_tag=found.e_tag, clock=CLOCK)
            except ContentionError:
                await CLOCK.sleep(int(5_000 * CLOCK.uniform()))
            else:
                done += 1

    await open_again().put("counter", b"0 nobody")
    await asyncio.gather(*(increment(open_again(), f"w{name}") for name in range(writers)))
    found = await open_again().get("counter")
    assert int(found.data.split()[0]) == writers * increments
