"""Scenarios T31 to T36: since, its holds, and wrong clocks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from kit.clocks import HandClock, SwiftClock
from kit.shards import COMMITTED, Place, contents, in_memory, merge_away, rows, shard_in_parts
from tidelog.consensus.port import Consensus, KeyRecord
from tidelog.core.clock import SystemClock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import SeqNo
from tidelog.errors import AsOfBeforeSince, HoldExpired, HoldFenced, UsageError
from tidelog.testing.models import ShardModel, contents_of, updates_of

LEASE_US = 60_000_000
HOUR_US = 3_600_000_000


class SettableClock(SwiftClock):
    """The clock of a host that is set wrong, and may be set again."""

    def __init__(self, off_us: int) -> None:
        super().__init__()
        self.off_us = off_us

    def now_us(self) -> int:
        return super().now_us() + self.off_us


async def test_t31_since_is_the_least_of_leased_and_critical_holds(place: Place) -> None:
    """The shard's `since` follows the slowest hold of any kind."""
    shard = await shard_in_parts(place)
    leased = await place.shard(clock=HandClock()).lease(2, lease_us=LEASE_US)
    assert await shard.move_hold("history", 5) == Frontier.at(2)
    assert await leased.move_hold(4) == Frontier.at(4)
    assert await leased.move_hold(7) == Frontier.at(5)
    assert await shard.move_hold("history", 6) == Frontier.at(6)
    await leased.close()
    with pytest.raises(AsOfBeforeSince, match="the earliest readable time is 6"):
        await place.shard().snapshot(5)


async def test_t32_since_follows_the_slowest_hold_and_stays_when_holds_go(place: Place) -> None:
    """A slow reader is protected only by its own hold."""
    shard, other = place.shard(), place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 10)
    assert await shard.hold("slow") == Frontier.at(0)
    assert await other.hold("quick", 2) == Frontier.at(2)
    assert await other.move_hold("quick", 9) == Frontier.at(0)
    assert (await contents(place.shard(), 0))[("a", 1)] == 1
    assert await shard.move_hold("slow", 3) == Frontier.at(3)
    assert await shard.move_hold("slow", 1) == Frontier.at(3)
    assert await shard.drop_hold("slow")
    assert await shard.drop_hold("quick")
    assert not await shard.drop_hold("quick")
    assert await place.shard().since() == Frontier.at(3)
    assert await other.hold("new") == Frontier.at(3)
    with pytest.raises(UsageError):
        await other.hold("old", 2)


@pytest.mark.parametrize("seed", range(6))
async def test_t32_since_never_goes_back_nor_jumps(seed: int) -> None:
    """Holders arrive, move, expire and leave. A new hold starts at the given `since`."""
    dice, place = random.Random(seed), in_memory()
    shards = [place.shard() for _ in range(3)]
    await shards[0].compare_and_append(rows(("a", 1, 0, 1)), 0, 100)
    names: set[str] = set()
    last, told = Frontier.at(0), Frontier.at(0)
    for number in range(60):
        shard = dice.choice(shards)
        match dice.choice(["come", "come", "move", "move", "go", "all go"]):
            case "come":
                told = await shard.hold(f"h{number}")
                names.add(f"h{number}")
                assert last == told
            case "move" if names:
                name = dice.choice(sorted(names))
                await shard.move_hold(name, min(99, last.time + dice.randrange(6)))
            case "go" if names:
                name = dice.choice(sorted(names))
                names.discard(name)
                await shard.drop_hold(name)
                assert await place.shard().since() == last
            case "all go":
                await asyncio.gather(*(dice.choice(shards).drop_hold(name) for name in names))
                names.clear()
                assert await place.shard().since() == last
        now = await place.shard().since()
        assert last <= now
        state = await shard.refresh()
        assert all(now <= state.holds[name].frontier for name in names)
        last = now


async def test_t33_any_watcher_ends_a_lease_that_is_not_renewed(place: Place) -> None:
    """A lease protects its times until its end. Afterwards, only critical holds remain."""
    shard = await shard_in_parts(place)
    reader = await place.shard(clock=HandClock()).lease(lease_us=LEASE_US)
    planned = await reader.snapshot(5)
    await reader.stop()
    clock = HandClock()
    watcher = place.shard(clock=clock)
    assert await watcher.end_leases() == 0
    await clock.pass_us(LEASE_US - 1)
    assert await watcher.end_leases() == 0
    await clock.pass_us(1)
    assert await watcher.end_leases() == 1
    assert (await shard.refresh()).holds.keys() == {"history"}
    with pytest.raises(HoldExpired, match="open another reader"):
        await reader.renew()
    await merge_away(place.shard(clock=HandClock()))
    # The newest state still gives the same contents.
    assert contents_of(await planned.to_arrow(consolidated=True)) == await contents(shard, 5)
    await shard.move_hold("history", 7)
    await merge_away(place.shard(clock=HandClock()))
    with pytest.raises(AsOfBeforeSince):
        await planned.to_arrow()


async def test_t33_a_heartbeat_has_the_time_of_its_commit_not_of_its_call(place: Place) -> None:
    """A renewal that loses races for an hour must not record a time that is an hour old."""
    clock = HandClock()

    class ContendedConsensus:
        """A consensus in which another writer wins first, each time after an hour."""

        def __init__(self, inner: Consensus) -> None:
            self._inner, self.losses = inner, 0
            self.head, self.scan, self.sweep = inner.head, inner.scan, inner.sweep
            self.truncate, self.list_keys = inner.truncate, inner.list_keys

        async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
            (one,) = records
            return await self.compare_and_set(one.key, one.seqno, one.data)

        async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
            if self.losses:
                self.losses -= 1
                clock._now_us += HOUR_US
                other = place.shard()
                upper = (await other.upper()).time
                await other.compare_and_append(None, upper, upper + 1)
            return await self._inner.compare_and_set(key, seqno, data)

    shard = await shard_in_parts(place, count=2)
    consensus = ContendedConsensus(place.consensus())
    reader = await place.shard(clock=clock, consensus=consensus).lease(lease_us=LEASE_US)
    await reader.stop()
    consensus.losses = 1
    begun_us = clock.now_us()
    await reader.renew()
    beat = (await shard.refresh()).holds[reader.name]
    assert (beat.beat, beat.at_us) == (1, begun_us + HOUR_US)


async def test_t34_a_greater_token_fences_the_owner_before_for_ever(place: Place) -> None:
    """A fenced owner learns the valid token and the position of the hold."""
    old, new = await shard_in_parts(place), place.shard()
    assert await old.hold("mine", 1, token=3) == Frontier.at(1)
    assert await old.move_hold("mine", 2, token=3) == Frontier.at(0)
    assert await new.hold("mine", token=4) == Frontier.at(2)
    for given in (3, None, 0):
        with pytest.raises(HoldFenced) as caught:
            await old.move_hold("mine", 5, token=given)
        assert (caught.value.facts["token"], caught.value.facts["since"]) == (4, Frontier.at(2))
    with pytest.raises(HoldFenced):
        await old.drop_hold("mine", token=3)
    with pytest.raises(HoldFenced):
        await old.hold("mine", token=3)
    # A move to the same time with a greater token is only a takeover.
    await old.move_hold("mine", 2, token=9)
    assert (await new.refresh()).holds["mine"].frontier == Frontier.at(2)
    with pytest.raises(HoldFenced):
        await new.move_hold("mine", 5, token=4)
    assert await old.drop_hold("mine", token=9)


@pytest.mark.parametrize("off_us", [HOUR_US, -HOUR_US])
@pytest.mark.parametrize("who", ["writer", "reader", "watcher"])
async def test_t35_a_clock_that_is_an_hour_off_loses_nothing(
    place: Place, off_us: int, who: str
) -> None:
    """Leases may end early or late, but contents are right and each commit counts once."""
    clocks = {
        name: SettableClock(off_us if name == who else 0)
        for name in ("writer", "reader", "watcher")
    }
    writer, watcher = place.shard(clock=clocks["writer"]), place.shard(clock=clocks["watcher"])
    model = ShardModel()
    await writer.hold("history", 0)
    leased = await place.shard(clock=clocks["reader"]).lease(lease_us=LEASE_US)
    await leased.stop()
    for time in range(6):
        clocks[who].off_us += off_us // 2 * (-1) ** time  # The clock is set wrong and then back.
        table = rows(*[(f"k{n}", time, time, 1) for n in range(700)])
        done = await writer.compare_and_append(table, time, time + 1)
        model.compare_and_append(updates_of(table), time, time + 1)
        assert done.verdict is COMMITTED
        await watcher.compact(full=True)
        await watcher.collect(after_us=0)
        await watcher.sweep()
        try:
            found = contents_of(await (await leased.snapshot(time)).to_arrow(consolidated=True))
        except HoldExpired:
            continue
        assert found == model.contents(time)
    for as_of in range(6):
        assert await contents(place.shard(), as_of) == model.contents(as_of)


async def test_t35_a_lease_within_an_hour_of_clocks_ends_by_watching_alone() -> None:
    """A watcher whose clock is almost an hour ahead does not end a lease at once."""
    place = in_memory()
    shard = await shard_in_parts(place, count=2)
    reader = await place.shard(clock=SystemClock()).lease(lease_us=LEASE_US)
    watcher = place.shard(clock=SettableClock(HOUR_US - LEASE_US))
    assert await watcher.end_leases() == 0
    assert await watcher.end_leases() == 0
    assert reader.name in (await shard.refresh()).holds
    await reader.close()


async def test_t36_a_handle_of_a_dropped_shard_is_closed(place: Place) -> None:
    """A handle of a dropped shard reads nothing, holds nothing, and writes no record."""
    shard = await shard_in_parts(place, count=2)
    await shard.drop()
    seqno = shard.machine.seqno
    reader = await place.shard().lease()
    assert reader.since == Frontier.empty()
    with pytest.raises(AsOfBeforeSince, match="no time is readable"):
        await reader.snapshot(1)
    await reader.close()
    with pytest.raises(UsageError):
        await place.shard().hold("new", 1)
    assert (await place.shard().try_compare_and_append(None, 2, 3)).upper == Frontier.empty()
    await shard.refresh()
    assert shard.machine.seqno == seqno
