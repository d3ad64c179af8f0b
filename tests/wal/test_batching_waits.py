"""Writers with slow batching settings: only a silent store makes their appends fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kit.stores import InterposedStore
from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.errors import Outcome, TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log

PROTOCOLS = ("slot", "manifest")
SLOW = (Batching(puts_per_second=0.02), Batching(interval_us=60_000_000))
SLOW_IDS = ("tokens", "interval")


class HangingStore:
    """A store hook that blocks every request once ``is_gone`` is set."""

    is_gone = False

    async def __call__(self, _op: str, _key: str) -> None:
        if self.is_gone:
            await asyncio.get_running_loop().create_future()


def play(
    protocol: str, batching: Batching, body: Callable[[Log, HangingStore], Awaitable[None]]
) -> None:
    """Run a test body in virtual time, over a log with one record."""

    async def main() -> None:
        before = HangingStore()
        store = InterposedStore(MemoryStore(), before=before)
        log = await create_log(
            store, name="x", clock=SimClock(1), writer="w", protocol=protocol, batching=batching
        )
        await log.append([b"first"])
        await body(log, before)

    run(main, 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("batching", SLOW, ids=SLOW_IDS)
def test_slow_settings_refuse_nothing(protocol: str, batching: Batching) -> None:
    """A batching pause of a minute refuses no append, because the settings ask for it."""

    async def body(log: Log, _: HangingStore) -> None:
        calls = []
        for number in range(3):
            calls.append(asyncio.create_task(log.append([b"%d" % number])))
            await asyncio.sleep(0.5)
        assert await asyncio.gather(*calls) == [2, 3, 4]
        await log.close()

    play(protocol, batching, body)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("batching", "most_s"), [(SLOW[0], 51), (SLOW[1], 1)], ids=SLOW_IDS)
def test_closing_waits_for_tokens_and_no_interval(
    protocol: str, batching: Batching, most_s: float
) -> None:
    """Closing a writer waits for the rate, but not for the batching interval."""

    async def body(log: Log, _: HangingStore) -> None:
        last = asyncio.create_task(log.append([b"last"]))
        await asyncio.sleep(0.1)
        begun = asyncio.get_running_loop().time()
        await log.close()
        assert await last == 2
        assert asyncio.get_running_loop().time() - begun < most_s

    play(protocol, batching, body)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("batching", SLOW, ids=SLOW_IDS)
def test_slow_settings_excuse_no_silence(protocol: str, batching: Batching) -> None:
    """A silent store fails the appends in time, even if slow settings hold back the next batch."""

    async def body(log: Log, store: HangingStore) -> None:
        store.is_gone = True
        begun = asyncio.get_running_loop().time()
        sent = asyncio.create_task(log.append([b"sent"]))
        await asyncio.sleep(61)  # The first append is sent by now.
        behind = asyncio.create_task(log.append([b"behind"]))
        told = await asyncio.gather(sent, behind, return_exceptions=True)
        assert asyncio.get_running_loop().time() - begun < 61 + 70
        outcomes = [one.outcome for one in told if isinstance(one, TidelogError)]
        assert outcomes == [Outcome.UNKNOWN, Outcome.NOT_APPLIED]
        await log.close()

    play(protocol, batching, body)
