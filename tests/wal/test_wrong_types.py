"""What could not be read again is refused before anything is written, whatever its type claims."""

from __future__ import annotations

from typing import Any

import pytest

from kit.clocks import SwiftClock
from kit.stores import keys_in
from tidelog.errors import TidelogError, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.slot_protocol.shape import Shape

WRONG: list[Any] = [3.0, True, "3", -3]


async def filled(logs: Logs, protocol: str) -> Log:
    """Return a log of four records."""
    log = await logs.create("a", protocol=protocol)
    for body in (b"1", b"2", b"3", b"4"):
        await log.append([body])
    await log.close()
    return await logs.open("a")


async def bodies(log: Log) -> list[bytes]:
    return [row["body"] async for table in log.scan() for row in table.to_pylist()]


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_position_is_an_int(protocol: str, wrong: Any) -> None:
    """A cursor at 3.0 would stop every collection until somebody deletes its file."""
    logs = Logs(store=MemoryStore(), clock=SwiftClock(), writer="w")
    log = await filled(logs, protocol)
    before = await keys_in(logs.store)

    for call in (
        lambda: log.create_cursor("c", wrong),
        lambda: logs.copy("a", "b", start=wrong),
        lambda: logs.fork("a", "f", start=wrong),
        lambda: log.create_pin("p", start=wrong),
    ):
        with pytest.raises((UsageError, TypeError)):
            await call()
    assert await keys_in(logs.store) == before
    assert await bodies(log) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_read_by_a_wrong_position_is_refused(protocol: str, wrong: Any) -> None:
    """A limit of -1 is no last record but one, and "3" no 3: neither is a comparison that fails."""
    log = await filled(Logs(store=MemoryStore(), clock=SwiftClock(), writer="w"), protocol)

    for call in (
        lambda: anext(log.scan(wrong)),
        lambda: anext(log.scan(limit=wrong)),
        lambda: anext(aiter(log.follow(wrong))),
        lambda: log.fragments(wrong),
        lambda: log.fragments(limit=wrong),
        lambda: log.scrub(wrong),
        lambda: log.scrub(limit=wrong),
        lambda: log.create_pin("p", limit=wrong),
        lambda: log.collect(grace_us=wrong),
    ):
        with pytest.raises(UsageError, match=r"whole number|is no position"):
            await call()


@pytest.mark.parametrize("wrong", [None, 5, b"next", "n" * 100_000])
async def test_a_successor_is_a_short_text(wrong: Any) -> None:
    """A fence that cannot be read ends the log for everybody, and there is nothing to restore."""
    logs = Logs(store=MemoryStore(), clock=SwiftClock(), writer="w")
    log = await filled(logs, "slot")

    with pytest.raises(UsageError, match="successor"):
        await log.seal(successor=wrong)
    assert await log.append([b"5"]) == 5
    assert len(await bodies(log)) == 5


@pytest.mark.parametrize("shape", [{"alpha": 8.0}, {"lanes": 2.0}, {"alpha": True}])
def test_a_shape_is_made_of_ints(shape: dict[str, Any]) -> None:
    """It is written into the fence that opens an epoch."""
    with pytest.raises(UsageError, match="whole number"):
        Shape(**shape)


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("now_us", [-(10**15), -1, 2**63, 2**70])
async def test_a_clock_that_is_set_wrongly_spoils_no_log(protocol: str, now_us: int) -> None:
    """Which time it says decides nothing; that it cannot be stored is no reason to lose records."""

    class Wrong(SwiftClock):
        def now_us(self) -> int:
            return now_us

    store = MemoryStore()
    log = await filled(Logs(store=store, clock=Wrong(), writer="w"), protocol)
    assert await bodies(log) == [b"1", b"2", b"3", b"4"]
    await log.create_cursor("c", 2)

    later = await Logs(store=store, clock=SwiftClock(), writer="later").open("a")
    assert await later.append([b"5"]) == 5
    assert (await later.scrub()).problems == []
    with pytest.raises(TidelogError):
        await later.create_cursor("c", 2)
