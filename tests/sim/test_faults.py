"""The rarer faults: each kind has the effect it promises, and is counted when it takes effect."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from sim.checkers.demands import Violated
from sim.checkers.liveness import Deadline
from sim.kernel.faults import Dice, Fault, Jump, ReportedError, Request, Schedule, Script
from sim.kernel.loop import SimLoop, run
from sim.kernel.rates import DAYS, RarerRates, Rates, day_of, seeds_of, worse_of
from sim.kernel.world import Client, World
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    Outcome,
    StoreRefused,
    TidelogError,
)


def world_of(fault: Fault, *, index: int = 0) -> tuple[World, Client]:
    world = World(1, Script({("a", index): fault}))
    return world, world.client("a")


def told(call: Callable[[], Coroutine[object, object, object]]) -> TidelogError | object:
    """Return the result of a call, or the error that it raises."""

    async def main() -> TidelogError | object:
        try:
            return await call()
        except TidelogError as error:
            return error

    return run(main, 1)


@pytest.mark.parametrize("happened", [True, False])
def test_a_409_says_nothing_of_what_became_of_the_put(happened: bool) -> None:
    """A store reports NOT_APPLIED for the refused try, but an earlier try may have landed."""
    world, client = world_of(Fault(happened=happened, told=False, error=ReportedError.BUSY))

    error = told(lambda: client.store.put("key", b"x", if_absent=True))

    assert isinstance(error, ContentionError)
    assert error.outcome is Outcome.NOT_APPLIED
    assert ("key" in world.store.objects) == happened
    assert world.struck["busy"] == 1


def test_a_short_read_gives_a_prefix_and_may_say_so() -> None:
    """A store that checks lengths raises for a short read; another returns the prefix."""
    for is_told in (True, False):
        fault = Fault(told=is_told, error=ReportedError.SHORT, share=0.5)
        world, client = world_of(fault, index=1)

        async def read(client: Client = client) -> bytes:
            await client.store.put("key", b"abcd")
            return (await client.store.get("key")).data

        found = told(read)

        assert found == b"ab" if is_told else isinstance(found, CorruptionError)
        assert world.struck["short"] == 1


def test_what_is_not_there_is_not_cut_short() -> None:
    """A get of a missing object raises ObjectNotFound, and counts no short read."""
    world, client = world_of(Fault(told=False, error=ReportedError.SHORT, share=0.5))

    assert isinstance(told(lambda: client.store.get("key")), LookupError)
    assert not world.struck["short"]


def test_a_refusal_is_no_answer_that_could_have_happened() -> None:
    """A client with expired credentials gets StoreRefused, and nothing is stored."""
    world, client = world_of(Fault(happened=False, error=ReportedError.DENIED))

    assert isinstance(told(lambda: client.store.put("key", b"x")), StoreRefused)
    assert not world.store.objects
    assert world.struck["denied"] == 1


def test_a_deletion_may_be_done_in_part() -> None:
    """A store deletes key by key; the client gets UNKNOWN after half of the keys."""
    world, client = world_of(Fault(told=False, share=0.5), index=4)

    async def delete() -> None:
        for name in "abcd":
            await client.store.put(name, b"")
        await client.store.delete(["a", "b", "c", "d"])

    error = told(delete)

    assert isinstance(error, LocationError)
    assert error.outcome is Outcome.UNKNOWN
    assert len(world.store.objects) == 2
    assert world.struck["cut"] == 1


def test_the_last_put_of_a_dead_client_may_land_much_later() -> None:
    """The put lands long after the client's death, and a run can wait for that moment."""
    late = Fault(happened=False, told=False, dies=True, late_us=300_000_000)
    world, client = world_of(late)
    seen: list[bool] = []

    async def main() -> None:
        await client.live(client.store.put("key", b"x"))
        await asyncio.sleep(200)
        seen.append("key" in world.store.objects)
        await world.until_all_has_landed()
        seen.append("key" in world.store.objects)

    run(main, 1)

    assert seen == [False, True]
    assert client.is_dead
    assert world.struck["died_late"] == 1


def test_a_copy_takes_what_is_under_way_along() -> None:
    """Changes under way land on the copy too, and leave the world unchanged."""
    world, client = world_of(Fault(happened=False, told=False, late_us=1_000))
    other = world.client("b")
    landed: list[str] = []

    class Watcher:
        def on_put(self, key: str, data: bytes) -> None:
            landed.append(key)

        def on_delete(self, keys: object) -> None:
            """Nothing is deleted."""

    async def main() -> None:
        await other.store.put("there", b"")
        with pytest.raises(LocationError):
            await client.store.put("late", b"x")
        copy = world.copy()
        assert [*copy.store.objects] == ["there"]
        await copy.land_all(Watcher(), but="never mind")
        assert [*copy.store.objects] == ["there", "late"]
        assert [*world.store.objects] == ["there"]

    run(main, 1)

    assert landed == ["late"]


def test_a_paused_client_does_nothing_and_the_world_continues() -> None:
    """A paused client's timers wait, its request happens, and the world continues."""
    world, stopped = world_of(Fault(stops_us=60_000_000))
    other = world.client("b")
    events: list[tuple[str, int]] = []

    def note(what: str) -> None:
        events.append((what, int(asyncio.get_running_loop().time())))

    async def stop() -> None:
        await stopped.store.put("key", b"x")
        note("stopped has its answer")

    async def tick() -> None:
        await stopped.clock.sleep(5_000_000)
        note("its timer")

    async def watch() -> None:
        await other.clock.sleep(10_000_000)
        note("there" if "key" in world.store.objects else "not there")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            stopped.start(group, stop())
            stopped.start(group, tick())
            other.start(group, watch())

    run(main, 1)

    assert events[0] == ("there", 10)
    assert sorted(events[1:]) == [("its timer", 60), ("stopped has its answer", 60)]
    assert world.struck["stopped"] == 1


def test_clocks_jump_and_monotonic_time_only_forward() -> None:
    """Wall time may go back by an hour; monotonic time never goes back."""

    class JumpingScript(Script):
        def jumps_of(self, client: str) -> list[Jump]:
            return [Jump(1_000_000, -3_600_000_000, 5_000_000), Jump(9_000_000, 7, 0)]

    world = World(1, JumpingScript())
    clock = world.client("a").clock

    async def main() -> tuple[int, int]:
        wall, monotonic = clock.now_us(), clock.monotonic_us()
        await clock.sleep(2_000_000)
        return clock.now_us() - wall, clock.monotonic_us() - monotonic

    assert run(main, 1) == (2_000_000 - 3_600_000_000, 7_000_000)
    assert world.struck["jumped"] == 1  # The second jump comes after the run.


def request(op: str, *, at_us: int = 0, key: str = "key", client: str = "a") -> Request:
    return Request(client=client, index=0, op=op, key=key, size=2, at_us=at_us)


def dice_of(worse: RarerRates, **more: float) -> Dice:
    return Dice(random.Random(1), Rates(**more), worse=worse, worse_random=random.Random(2))  # type: ignore[arg-type]


def test_a_409_goes_on_for_its_key_and_ends() -> None:
    """Every put of the key gets a 409, from any client, until the spell ends."""
    dice = dice_of(RarerRates(busy=1.0, spells=1.0, spell_us=1_000))

    first = dice.of(request("put"))
    dice.worse = RarerRates(stops=1e-9)

    assert first.error is ReportedError.BUSY
    [spell] = dice.spells
    assert 0 < spell.until_us <= 1_000
    assert dice.of(request("put", client="b")).error is ReportedError.BUSY
    assert not dice.of(request("put", client="b")).happened
    assert dice.of(request("put", key="other")).kind == ""
    assert dice.of(request("get")).kind == ""
    assert dice.of(request("put", at_us=spell.until_us)).kind == ""


def test_a_refusal_goes_on_for_its_client_and_ends() -> None:
    """A spell covers one key or all, and one kind of request or all, but only its client."""
    seen = set()
    for seed in range(40):
        dice = dice_of(RarerRates(denied=1.0, spells=1.0, spell_us=1_000))
        dice.worse_random.seed(seed)
        dice.of(request("put"))
        dice.worse = RarerRates(stops=1e-9)
        seen.add(
            tuple(
                dice.of(request(op, key=key)).kind == "denied"
                for op in ("put", "get")
                for key in ("key", "other")
            )
        )
        assert dice.of(request("put", client="b")).kind == ""
        assert dice.of(request("put", at_us=1_001)).kind == ""

    yes, no = True, False
    assert seen == {(yes, yes, yes, yes), (yes, no, yes, no), (yes, yes, no, no), (yes, no, no, no)}


def test_what_is_worse_leaves_a_run_without_it_as_it_was() -> None:
    """A seed that once failed keeps its meaning when a day adds other faults."""
    rates = {"lost_after": 0.2, "late": 0.2}
    plain, worse = dice_of(DAYS["as before"], **rates), dice_of(RarerRates(stops=1e-9), **rates)

    requests = [request(op) for op in ("put", "get", "delete") * 50]

    assert [plain.of(one) for one in requests] == [worse.of(one) for one in requests]


def test_each_day_comes_up_and_a_seed_has_one() -> None:
    """Every day occurs, and a seed determines its day."""
    found = {day_of(seed) for seed in range(100)}

    assert found == set(DAYS)
    for day in DAYS:
        assert all(day_of(seed) == day for seed in seeds_of(day, 5))
        assert worse_of(seeds_of(day, 1)[0]).busy == DAYS[day].busy


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


def within(
    seconds: float, work: Callable[[Client], Awaitable[object]], schedule: Schedule | None = None
) -> None:
    """Run some work of a client with a deadline in seconds."""
    world = World(1, schedule or Script())
    client = world.client("a")

    async def live() -> None:
        async with Deadline(client, "the work", seconds):
            await work(client)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            client.start(group, live())

    try:
        run(main, 1)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def test_what_does_not_end_is_named() -> None:
    """A deadline names the call, its client, and the place where it waits."""
    with pytest.raises(Violated, match=r"the work of a did not end within 5 s; waiting: .*hang"):
        within(5, lambda _: hang())


def test_what_ends_in_time_is_left_alone() -> None:
    """Work that ends in time raises nothing new; an error also ends it."""

    async def fail(_: Client) -> None:
        raise LocationError("so it is")

    within(5, lambda client: client.clock.sleep(4_900_000))
    with pytest.raises(LocationError):
        within(5, fail)


def test_a_pause_does_not_count_for_the_deadline() -> None:
    """A pause does not count for the deadline, but late work after it does."""
    stop = Script({("a", 0): Fault(stops_us=60_000_000)})

    async def work(client: Client, seconds: int) -> None:
        await client.store.put("key", b"x")
        await client.clock.sleep(seconds * 1_000_000)

    within(5, lambda client: work(client, 4), stop)
    with pytest.raises(Violated):
        within(5, lambda client: work(client, 6), Script(stop.faults))


def test_a_stop_is_counted_once_however_often_it_is_asked_for() -> None:
    """A paused client cannot be paused again, and resumes at the first pause's end."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.stop_owner("a", 2.0)
        loop.stop_owner("a", 50.0)
        await asyncio.sleep(1)
        found = [loop.stopped_for("a")]
        await asyncio.sleep(1.5)
        return [*found, loop.stopped_for("a"), loop.stopped_seconds("a")]

    assert run(main, 1) == [1.0, 0.0, 2.0]
