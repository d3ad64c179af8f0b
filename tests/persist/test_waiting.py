"""Reads of incomplete times: the shard refuses them, or waits if the caller asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kit.clocks import HandClock, SwiftClock
from kit.shards import Place, contents, heard, in_memory, rows
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.store import StoreConsensus
from tidelog.core.frontier import TIME_MAX
from tidelog.errors import AsOfNotComplete, DeadlineExceeded, UsageError
from tidelog.persist.handle.shard import Shard
from tidelog.persist.transactions.transactions import Transactions
from tidelog.testing.faulty import DelayedStore

SECOND_US = 1_000_000

READS: dict[str, Callable[[Shard, int], Awaitable[object]]] = {
    "snapshot": lambda shard, as_of: shard.snapshot(as_of),
    "listen": lambda shard, as_of: anext(aiter(shard.listen(as_of))),
}


async def leased_snapshot(shard: Shard, as_of: int) -> object:
    return await (await shard.lease()).snapshot(as_of)


async def leased_listen(shard: Shard, as_of: int) -> object:
    return await anext(aiter((await shard.lease()).listen(as_of)))


READS |= {"snapshot of a lease": leased_snapshot, "listen of a lease": leased_listen}


async def written(place: Place, *, upper: int | None = 3) -> Shard:
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, upper)
    return shard


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_read_past_upper_is_refused_and_names_upper(
    read: Callable[[Shard, int], Awaitable[object]],
) -> None:
    """A read past the upper raises AsOfNotComplete with the upper, instead of waiting forever."""
    shard = await written(in_memory())

    async with asyncio.timeout(5):
        with pytest.raises(AsOfNotComplete, match=r"asked=100 upper=3"):
            await read(shard, 100)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_read_of_a_name_without_a_shard_is_refused(
    read: Callable[[Shard, int], Awaitable[object]],
) -> None:
    """AsOfNotComplete advises a check of the name."""
    async with asyncio.timeout(5):
        with pytest.raises(AsOfNotComplete, match=r"check its name.*asked=0 upper=0"):
            await read(in_memory().shard(name="nix"), 0)


async def test_a_read_waits_if_the_caller_asks() -> None:
    """With `wait=True`, a consumer may start before its producer."""
    place = in_memory()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        snapshot = group.create_task(contents(place.shard(), 2, wait=True))
        updates = group.create_task(heard(place.shard().listen(0, wait=True), 3))
        await asyncio.sleep(0)
        shard = await written(place, upper=1)
        await shard.compare_and_append(rows(("b", 1, 1, 1)), 1, 3)

    assert snapshot.result() == {("a", 1): 1, ("b", 1): 1}
    assert [update.row for update in updates.result()] == [("b", 1)]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_a_read_of_a_limited_handle_ends_within_its_limit(
    read: Callable[[Shard, int], Awaitable[object]],
) -> None:
    """A lease and a listener of the handle keep its time limit, and the error names the upper."""
    clock = HandClock()
    await written(place := in_memory())

    reading = asyncio.ensure_future(read(place.shard(clock=clock).within(SECOND_US), 100))
    await clock.pass_us(0)
    await clock.pass_us(SECOND_US - 1)
    assert not reading.done()
    await clock.pass_us(1)

    with pytest.raises(DeadlineExceeded, match=r"not complete yet.*asked=100 upper=3"):
        await asyncio.wait_for(reading, 5)


async def test_a_limited_read_ends_though_the_store_does_not_answer() -> None:
    """A limited read ends at its limit, even while a request is in progress."""
    clock = HandClock()
    place = in_memory()
    slow = DelayedStore(place.store, clock=clock, delay_us=lambda _, __: 50 * SECOND_US)
    shard = place.shard(clock=clock, consensus=StoreConsensus(store=slow, clock=clock))
    reading = asyncio.ensure_future(shard.within(SECOND_US).snapshot(0, wait=True))
    await clock.pass_us(0)
    await clock.pass_us(SECOND_US)

    with pytest.raises(DeadlineExceeded, match="did not finish within its timeout"):
        await asyncio.wait_for(reading, 5)


async def test_transactions_refuse_or_wait_as_shards_do() -> None:
    """Reads of a registered shard go through its transactions, with the same rules."""
    place = in_memory()
    consensus = MemoryConsensus()

    def opened() -> Transactions:
        return Transactions(
            name="bank", store=place.store, consensus=consensus, clock=place.shard().clock
        )

    bank = opened()
    await bank.register(place.shard(consensus=consensus, clock=SwiftClock()))
    await bank.compare_and_append({"s": rows(("a", 1, 0, 1))}, 0, 3)

    async with asyncio.timeout(5):
        for read in (opened().snapshot("s", 9), anext(aiter(opened().listen("s", 9)))):
            with pytest.raises(AsOfNotComplete, match=r"asked=9 upper=3"):
                await read
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(opened().snapshot("s", 3, wait=True))
            await asyncio.sleep(0)
            await bank.compare_and_append({"s": rows(("b", 1, 3, 1))}, 3, 4)
    assert (await waiting.result().to_arrow()).num_rows == 2


@pytest.mark.parametrize("upper", [3, None], ids=["open", "finished"])
async def test_a_listener_after_the_greatest_time_is_refused_by_the_callers_value(
    upper: int | None,
) -> None:
    """No time follows 2^63 - 1. The message shows that number."""
    shard = await written(in_memory(), upper=upper)

    with pytest.raises(UsageError, match=r"no time follows .*as_of=9223372036854775807"):
        await anext(aiter(shard.listen(TIME_MAX)))
