"""Arguments of wrong types: refused before any write, because the result could not be read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kit.clocks import SwiftClock
from kit.stores import keys_in
from tidelog.core.clock import Clock
from tidelog.errors import TidelogError, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.gc.deletion import Pace
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.read.limits import Limits
from tidelog.wal.slot_protocol.shape import Shape

WRONG: list[Any] = [3.0, True, "3", -3]
Calls = list[Callable[[], Awaitable[object]]]


def from_start(logs: Logs, log: Log, wrong: Any) -> Calls:
    """Return calls with a start, each with a wrong one."""
    return [
        lambda: logs.copy("a", "b", start=wrong),
        lambda: logs.fork("a", "f", start=wrong),
        lambda: log.create_pin("p", start=wrong),
        lambda: anext(log.scan(wrong)),
        lambda: anext(aiter(log.follow(wrong))),
        lambda: log.fragments(wrong),
        lambda: log.scrub(wrong),
    ]


async def filled(protocol: str = "slot", clock: Clock | None = None) -> tuple[Logs, Log]:
    """Return a store's logs, and its log ``a`` of four records."""
    logs = Logs(store=MemoryStore(), clock=clock or SwiftClock(), writer="w")
    async with await logs.create("a", protocol=protocol) as log:
        for body in (b"1", b"2", b"3", b"4"):
            await log.append([body])
    return logs, await logs.open("a")


async def bodies(log: Log) -> list[bytes]:
    return [row["body"] async for table in log.scan() for row in table.to_pylist()]


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_position_is_an_int(protocol: str, wrong: Any) -> None:
    """A position must be an int: a cursor at 3.0 would stop every collection."""
    logs, log = await filled(protocol)
    before = await keys_in(logs.store)

    calls: Calls = [
        *from_start(logs, log, wrong),
        lambda: log.create_cursor("c", wrong),
        lambda: logs.rebuild("a", start=wrong),
        lambda: logs.drop("a", grace_us=wrong),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            await call()
    assert await keys_in(logs.store) == before
    assert await bodies(log) == [b"1", b"2", b"3", b"4"]
    held = await log.create_cursor("c", 2)
    with pytest.raises(UsageError, match="whole number"):
        await log.move_cursor(held, wrong)
    with pytest.raises(UsageError, match="0 is not a position: positions begin at 1"):
        await log.create_cursor("d", 0)
    assert (await log.load_cursor("c")).position == 2


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_read_by_a_wrong_position_is_refused(protocol: str, wrong: Any) -> None:
    """A read by a wrong position raises: -1 does not count from the end, "3" is not 3."""
    logs, log = await filled(protocol)

    calls: Calls = [
        *from_start(logs, log, wrong)[2:],
        lambda: anext(log.scan(limit=wrong)),
        lambda: log.fragments(limit=wrong),
        lambda: log.scrub(limit=wrong),
        lambda: log.create_pin("p", limit=wrong),
        lambda: log.collect(grace_us=wrong),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"whole number|is not a position"):
            await call()


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"pace": 5}, "pace must be a tidelog.Pace, not int"),
        ({"keep": 5}, "keep must be a tidelog.Keep, not int"),
        ({"keep": 0}, "keep must be a tidelog.Keep, not int"),
        ({"grace_us": 1.5}, "grace_us must be a whole number"),
        ({"keep": Keep(start=99)}, "has not reached that position"),
    ],
)
async def test_a_collection_is_refused_before_anything_is_erased(
    protocol: str, wrong: Any, told: str
) -> None:
    """A later error of a collection would leave a shorter log unnoticed."""
    logs, log = await filled(protocol)
    await log.create_cursor("c", 4)
    before = {key: (await logs.store.get(key)).data for key in await keys_in(logs.store)}
    settings: dict[str, Any] = {"grace_us": 0, "keep": Keep(share_max=1), **wrong}

    with pytest.raises(UsageError, match=told):
        await log.collect(**settings)
    if "keep" not in wrong:
        with pytest.raises(UsageError, match=told):
            await log.sweep(**wrong)
    after = {key: (await logs.store.get(key)).data for key in await keys_in(logs.store)}
    assert after == before


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_a_wrong_type_raises_an_error_with_the_expected_one(protocol: str) -> None:
    """A value of a wrong type raises UsageError with the name of the expected type."""
    logs, log = await filled(protocol)
    wrong: Any = 5

    for call, told in (
        (lambda: anext(log.scan(limits=wrong)), "limits must be a tidelog.Limits, not int"),
        (lambda: log.fetch(wrong), r"one that Log.fragments\(\) returned, not int"),
        (lambda: log.move_cursor(wrong, 2), "a tidelog.Witness, as load_cursor returns it, not"),
        (lambda: logs.open("a", batching=wrong), "batching must be a tidelog.Batching, not int"),
        (lambda: logs.open("a", shape=wrong), "shape must be a tidelog.Shape, not int"),
        (lambda: logs.create("b", shape=wrong), "shape must be a tidelog.Shape, not int"),
    ):
        with pytest.raises(UsageError, match=told):
            await call()
    assert await logs.list() == ["a"]


@pytest.mark.parametrize("wrong", [None, b"x", 5])
async def test_a_name_is_text(wrong: Any) -> None:
    """A name of a log, cursor or pin must be text."""
    logs, log = await filled()

    for call in (
        lambda: logs.open(wrong),
        lambda: logs.fork(wrong, "f"),
        lambda: logs.copy("a", wrong),
        lambda: log.create_cursor(wrong, 1),
        lambda: log.load_cursor(wrong),
        lambda: log.create_pin(wrong),
        lambda: log.drop_pin(wrong),
    ):
        with pytest.raises(UsageError, match="letters, digits"):
            await call()


@pytest.mark.parametrize(
    "make",
    [
        lambda wrong: Keep(records=wrong),
        lambda wrong: Keep(start=wrong),
        lambda wrong: Keep(share_max=wrong),
        lambda wrong: Batching(puts_per_second=wrong),
        lambda wrong: Batching(patience_us=wrong),
        lambda wrong: Batching(batch_bytes=wrong),
        lambda wrong: Pace(per_second=wrong),
        lambda wrong: Limits(records=wrong),
        lambda wrong: Limits(to_time_us=wrong),
        lambda wrong: Shape(rollup_slots=wrong),
        lambda wrong: Rollover(fragments=wrong),
    ],
)
@pytest.mark.parametrize("wrong", ["5", True, b"5", -1])
def test_a_setting_of_a_wrong_type_is_refused_where_it_is_made(
    make: Callable[[Any], object], wrong: Any
) -> None:
    """The message shows the wrong value; the first append or deletion would fail otherwise."""
    with pytest.raises(UsageError) as told:
        make(wrong)
    assert repr(wrong) in str(told.value)


OUT_OF_RANGE: list[tuple[type, dict[str, Any]]] = [
    *((Shape, {"alpha": n}) for n in (0, 257)),
    *((Shape, {"lanes": n}) for n in (0, 5_000)),
    (Shape, {"rollup_slots": 0}),
    *((Keep, {"share_max": n}) for n in (0, 1.1)),
    (Keep, {"records": -1}),
    *((Limits, {"records": n}) for n in (0, 1.5)),
    *((Limits, {"bytes": n}) for n in (-1, True)),
    (Limits, {"fragments": 0}),
    *((Limits, {"to_time_us": n}) for n in (-1, 2**63)),
    *((Pace, {"per_second": n}) for n in (0, -1, float("nan"), float("inf"), 1e-9)),
    *((Batching, {"patience_us": n}) for n in (0, -1, 1, 999_999, 2e6, 10**400)),
    *((Batching, {"puts_per_second": n}) for n in (0, -1, 5e-324, 1e-4, 1e7, 10**400)),
    *((Batching, {"puts_per_second": n}) for n in (float("inf"), float("nan"))),
]


@pytest.mark.parametrize(("make", "wrong"), OUT_OF_RANGE, ids=lambda one: str(one)[:40])
def test_a_setting_out_of_its_range_is_refused_where_it_is_made(
    make: type, wrong: dict[str, Any]
) -> None:
    """A setting outside its range, such as a pace of 0, raises UsageError when it is built."""
    with pytest.raises(UsageError):
        make(**wrong)


@pytest.mark.parametrize("wrong", [10**5_000, -(10**5_000)], ids=["long", "long, below 0"])
@pytest.mark.parametrize(
    "make",
    [
        lambda wrong: Keep(records=wrong),
        lambda wrong: Keep(share_max=wrong),
        lambda wrong: Batching(puts_per_second=wrong),
        lambda wrong: Batching(batch_bytes=wrong),
        lambda wrong: Pace(per_second=wrong),
        lambda wrong: Limits(records=-abs(wrong)),
        lambda wrong: Limits(to_time_us=wrong),
        lambda wrong: Shape(alpha=wrong),
        lambda wrong: Shape(rollup_slots=wrong),
    ],
)
def test_a_setting_of_thousands_of_digits_is_refused_in_a_short_sentence(
    make: Callable[[Any], object], wrong: Any
) -> None:
    """Python formats no number of more than 4,300 digits, so the message is short."""
    with pytest.raises(UsageError) as told:
        make(wrong)
    assert len(str(told.value)) < 400


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize(
    "wrong",
    [10**5_000, -(10**5_000), [10**5_000], "x" * 10**6 + "/", b"x" * 10**6],
    ids=["number", "below 0", "in a list", "text", "bytes"],
)
async def test_what_is_refused_is_quoted_shortly(protocol: str, wrong: Any) -> None:
    """A message quotes a long value shortly."""
    logs, log = await filled(protocol)
    held = await log.create_cursor("c", 2)

    calls: Calls = [
        lambda: logs.open(wrong),
        lambda: logs.create("b", protocol=wrong),
        lambda: logs.copy("a", "b", protocol=wrong),
        *from_start(logs, log, wrong),
        lambda: logs.rebuild("a", start=wrong),
        lambda: logs.drop("a", grace_us=wrong),
        lambda: log.create_cursor(wrong, 1),
        lambda: log.create_cursor("d", wrong),
        lambda: log.move_cursor(held, wrong),
        lambda: log.load_cursor(wrong),
        lambda: log.drop_pin(wrong),
        lambda: log.create_pin(wrong),
        lambda: log.position_at(wrong),
        lambda: log.seal(successor=wrong),
        lambda: log.scrub(limit=wrong),
        lambda: anext(log.scan(limit=wrong)),
        lambda: log.append([b"x"], timestamp_us=wrong),
    ]
    for call in calls:
        with pytest.raises(UsageError) as told:
            await call()
        assert len(str(told.value)) < 500


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_no_start_is_no_position(protocol: str) -> None:
    """A start of None, as a failed lookup returns it, raises; 0 means the oldest record."""
    logs, log = await filled(protocol)
    before = await keys_in(logs.store)
    for call in from_start(logs, log, None):
        with pytest.raises(UsageError, match="a position must be a whole number"):
            await call()
    assert await keys_in(logs.store) == before


@pytest.mark.parametrize("given", [{b"x", b"y"}, frozenset([b"x", b"y"])], ids=["set", "frozen"])
async def test_a_set_of_records_is_refused(given: Any) -> None:
    """A set of records is refused, because its order differs in each process."""
    _, log = await filled()

    with pytest.raises(UsageError, match="not a set"):
        await log.append(given)
    assert len(await bodies(log)) == 4


@pytest.mark.parametrize("wrong", [None, 5, b"next", "n" * 100_000])
async def test_a_successor_is_a_short_text(wrong: Any) -> None:
    """A successor that cannot be read would end the log for every process."""
    _, log = await filled()

    with pytest.raises(UsageError, match="successor"):
        await log.seal(successor=wrong)
    assert await log.append([b"5"]) == 5
    assert len(await bodies(log)) == 5


@pytest.mark.parametrize("shape", [{"alpha": 8.0}, {"lanes": 2.0}, {"alpha": True}])
def test_a_shape_is_made_of_ints(shape: dict[str, Any]) -> None:
    """A shape must have ints, because a fence stores it."""
    with pytest.raises(UsageError, match="whole number"):
        Shape(**shape)


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("now_us", [-(10**15), -1, 2**63, 2**70])
async def test_a_clock_that_is_set_wrongly_spoils_no_log(protocol: str, now_us: int) -> None:
    """A wrong clock loses no records. Its time decides nothing, even if it cannot be stored."""

    class FixedClock(SwiftClock):
        def now_us(self) -> int:
            return now_us

    logs, log = await filled(protocol, FixedClock())
    assert await bodies(log) == [b"1", b"2", b"3", b"4"]
    await log.create_cursor("c", 2)

    later = await Logs(store=logs.store, clock=SwiftClock(), writer="later").open("a")
    assert await later.append([b"5"]) == 5
    assert (await later.scrub()).problems == []
    with pytest.raises(TidelogError):
        await later.create_cursor("c", 2)
