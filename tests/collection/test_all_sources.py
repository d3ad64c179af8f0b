"""All sources in one process: fair shares, failures, sources that come and go, interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.clocks import SwiftClock
from kit.sources import bind, table_of, write_numbers
from tidelog.collection.ingest.all_sources import RETRY_US, AllResults, AllSources
from tidelog.collection.ingest.background_merges import BackgroundMerges
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import RunProgress, Summary, with_counts_of
from tidelog.collection.ingest.turns import SMALL_BYTES, Turns
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import (
    DataDiffers,
    GoneError,
    InvariantError,
    LocationError,
    NoSuchCollection,
    SourcesFailed,
    TidelogError,
    UsageError,
)
from tidelog.location import Location, open_location
from tidelog.store.wrappers.metered import usage_of

SECOND = 1_000_000
Tell = Callable[[RunProgress], None]


class Lake:
    """A location in a folder, with a source of files for each name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SwiftClock()
        self.ticks: list[str] = []
        self.errors: list[tuple[str | None, TidelogError, int]] = []

    async def open(self, *names: str) -> Location:
        location = await open_location(str(self.folder / "lake"), create=True, clock=self.clock)
        for name in names:
            await self.create(location, name)
        return location

    async def create(self, location: Location, name: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        spec = SourceSpec(name=name, files=str(self.folder / name), schema="n bigint, at bigint")
        await location.sources.create(spec)

    def write(self, name: str, file: str, *numbers: int) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return write_numbers(self.folder / name / file, *numbers)

    async def lose_bound(self, location: Location, name: str) -> None:
        """Bind a file of a source, and delete it before its rows are committed."""
        path = self.write(name, "lost.jsonl", 8, 9)
        assert await bind(await location.sources.ingester(name))
        path.unlink()

    async def run(
        self,
        location: Location,
        *,
        follow: bool = True,
        stop: Callable[[], bool] = lambda: False,
        on_tick: Callable[[str, RunProgress], None] = lambda *_: None,
        at_once: int = 4,
    ) -> AllResults:
        turns = Turns(at_once)

        def tell(name: str, progress: RunProgress) -> None:
            if progress.tick is not None:
                self.ticks.append(name)
            on_tick(name, progress)

        async def run(name: str, heard: Tell) -> Summary:
            ingester = await location.sources.ingester(name, bytes_max=40)
            return await run_ingest(
                ingester,
                follow=follow,
                interval_us=SECOND,
                on_tick=heard,
                stop=stop,
                turns=turns,
            )

        runs = AllSources(
            controller=location.controller,
            clock=self.clock,
            run=run,
            on_tick=tell,
            on_error=lambda *told: self.errors.append(told),
            stop=stop,
            follow=follow,
            interval_us=SECOND,
        )
        return await runs.go()


async def numbers(location: Location, name: str) -> list[int]:
    found: list[int] = (await table_of(location, name)).column("n").to_numpy().tolist()
    return sorted(found)


async def test_sources_take_turns() -> None:
    """A source with much input ticks once, and then waits for each other source that is ready."""
    turns, ticks = Turns(1), list[str]()

    async def run(name: str, count: int) -> None:
        for _ in range(count):
            async with turns.tick():
                ticks.append(name)
                await asyncio.sleep(0)

    await asyncio.gather(run("a", 9), run("b", 3), run("c", 2))
    assert ticks == [*"abcabcab", *"aaaaaa"]


async def test_large_ticks_wait_for_each_other_and_not_for_small_ones() -> None:
    """Two ticks that read much do not run at once. Small ones run next to a large one."""
    turns, running, seen = Turns(), list[str](), list[list[str]]()

    async def tick(name: str, size_bytes: int) -> None:
        async with turns.tick(size_bytes):
            running.append(name)
            for _ in range(3):
                await asyncio.sleep(0)
            seen.append(sorted(running))
            running.remove(name)

    sizes = {"large": SMALL_BYTES + 1, "other": SMALL_BYTES + 1, "small": SMALL_BYTES}
    await asyncio.gather(*(tick(name, size) for name, size in sizes.items()))
    assert ["large", "small"] in seen
    assert not any({"large", "other"} <= set(names) for names in seen)


async def test_a_large_source_does_not_delay_small_ones_until_its_end(tmp_path: Path) -> None:
    """With one turn at a time, each small source is done before the large one has half its rows."""
    lake = Lake(tmp_path)
    for n in range(30):
        lake.write("large", f"{n:02}.jsonl", n)
    for name in ("s1", "s2", "s3"):
        lake.write(name, "1.jsonl", 1)
    location = await lake.open("large", "s1", "s2", "s3")

    results = await lake.run(location, follow=False, at_once=1)
    rows = {name: summary.rows for name, summary in results.summaries.items()}
    assert rows == {"large": 30, "s1": 1, "s2": 1, "s3": 1}
    large = results.summaries["large"].ticks
    assert large >= 10
    for name in ("s1", "s2", "s3"):
        assert lake.ticks[: lake.ticks.index(name)].count("large") < large / 2


async def test_all_sources_are_ingested_and_a_failed_one_is_named(tmp_path: Path) -> None:
    """The error has the errors of the failed sources. The rows of the other sources are in."""
    lake = Lake(tmp_path)
    location = await lake.open("a", "b", "c")
    for name in "ac":
        lake.write(name, "1.jsonl", 1, 2)
    await lake.lose_bound(location, "b")
    told: list[str] = []

    with pytest.raises(SourcesFailed, match=r"1 of 3 sources failed: b: .*lost\.jsonl") as caught:
        await location.sources.ingest_all(on_tick=lambda name, _: told.append(name))
    assert list(caught.value.failed) == ["b"]
    assert isinstance(caught.value.failed["b"], GoneError)
    assert {"a", "c"} <= set(told)
    assert [await numbers(location, name) for name in "ac"] == [[1, 2], [1, 2]]

    await location.sources.skip("b", "lost.jsonl")
    summaries = await location.sources.ingest_all()
    assert [(name, one.rows, one.bad) for name, one in summaries.items()] == [
        ("a", 0, 0),
        ("b", 0, 1),
        ("c", 0, 0),
    ]


async def test_without_a_source_nothing_is_ingested(tmp_path: Path) -> None:
    """A location without sources is no error, or a scheduled command would fail there."""
    location = await Lake(tmp_path).open()

    assert await location.sources.ingest_all() == {}


async def test_wrong_arguments_are_refused_before_any_request(tmp_path: Path) -> None:
    """They are wrong for each source, so no source is tried."""
    location = await Lake(tmp_path).open("a")
    before = usage_of(location.store)

    with pytest.raises(UsageError, match="engine must be an object"):
        await location.sources.ingest_all(engine="spark")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bytes_max"):
        await location.sources.ingest_all(bytes_max="x")  # type: ignore[arg-type]
    assert usage_of(location.store) == before


async def test_requests_are_counted_for_each_source_alone(tmp_path: Path) -> None:
    """Each summary counts its own requests, though the sources share the location's store."""
    lake = Lake(tmp_path)
    location = await lake.open("a", "b")
    for n in range(10):
        lake.write("a", f"{n}.jsonl", n)
    lake.write("b", "1.jsonl", 1)
    before = usage_of(location.store)

    results = await lake.run(location, follow=False)
    used = usage_of(location.store) - before
    large, small = (results.summaries[name].store for name in "ab")
    assert large.put_count + small.put_count <= used.put_count
    assert large.put_count >= 2 * small.put_count > 0


async def test_following_takes_new_sources_and_leaves_dropped_ones(tmp_path: Path) -> None:
    """A source that is created later gets a run. A dropped one is reported, and is no failure."""
    lake = Lake(tmp_path)
    lake.write("a", "1.jsonl", 1)
    lake.write("b", "1.jsonl", 2)
    lake.write("c", "1.jsonl", 3)
    location = await lake.open("a", "b")
    other = await lake.open()
    todo = ["create c", "drop b", "create b"]
    changes: list[asyncio.Task[None]] = []

    def change(name: str, progress: RunProgress) -> None:
        is_ready = not changes or changes[-1].done()
        if todo and is_ready and ("c" not in todo[0] or lake.ticks):
            verb, _, of = todo.pop(0).partition(" ")
            work = other.sources.drop(of) if verb == "drop" else lake.create(other, of)
            changes.append(asyncio.create_task(work))

    def is_done() -> bool:
        if lake.ticks:
            change("", RunProgress(so_far=Summary()))
        return not todo and {"c"} <= set(lake.ticks) and lake.ticks.count("b") >= 2

    results = await lake.run(location, stop=is_done, on_tick=change)
    assert [name for name, _, _ in lake.errors] == ["b"]
    assert isinstance(lake.errors[0][1], GoneError)
    assert results.failed == {}
    assert [await numbers(other, name) for name in "abc"] == [[1], [2], [3]]
    # The summary of a name counts the rows of both sources.
    assert {name: one.rows for name, one in results.summaries.items()} == {"a": 1, "b": 2, "c": 1}


async def test_following_without_a_source_waits_for_the_first(tmp_path: Path) -> None:
    """The process may start before the first source exists."""
    lake = Lake(tmp_path)
    lake.write("a", "1.jsonl", 1)
    location = await lake.open()
    created: list[asyncio.Task[None]] = []

    def is_done() -> bool:
        if not created and lake.clock.slept_us > 3 * SECOND:
            created.append(asyncio.create_task(lake.create(location, "a")))
        return "a" in lake.ticks

    results = await lake.run(location, stop=is_done)
    assert results.summaries["a"].rows == 1


async def test_following_tries_a_failed_source_again(tmp_path: Path) -> None:
    """After the cause is removed, the source continues, and the run ends without an error."""
    lake = Lake(tmp_path)
    location = await lake.open("a", "b")
    lake.write("a", "1.jsonl", 1)
    await lake.lose_bound(location, "b")
    skips: list[asyncio.Task[None]] = []

    def is_done() -> bool:
        if lake.errors and not skips:
            skips.append(asyncio.create_task(location.sources.skip("b", "lost.jsonl")))
        return "b" in lake.ticks

    results = await lake.run(location, stop=is_done)
    assert {(name, pause_us) for name, _, pause_us in lake.errors} == {("b", RETRY_US)}
    assert results.failed == {}
    assert results.summaries["b"].bad == 1
    assert await numbers(location, "a") == [1]


async def test_a_failure_that_lasts_until_the_end_is_kept(tmp_path: Path) -> None:
    """A run that is stopped while a source waits for its next try reports that source."""
    lake = Lake(tmp_path)
    location = await lake.open("a", "b")
    lake.write("a", "1.jsonl", 1)
    await lake.lose_bound(location, "b")

    results = await lake.run(location, stop=lambda: bool(lake.errors) and "a" in lake.ticks)
    assert list(results.failed) == ["b"]
    with pytest.raises(SourcesFailed):
        results.check()


@pytest.mark.parametrize("error", [DataDiffers("they differ"), UsageError("no Java")])
async def test_a_failure_for_good_is_not_tried_again(tmp_path: Path, error: TidelogError) -> None:
    """If no source is left, the run ends, so that the user or a supervisor notices."""
    lake = Lake(tmp_path)
    location = await lake.open("a", "b")
    tries: list[str] = []

    async def run(name: str, tell: Tell) -> Summary:
        tries.append(name)
        raise error

    runs = AllSources(
        controller=location.controller,
        clock=lake.clock,
        run=run,
        on_error=lambda *told: lake.errors.append(told),
        follow=True,
        interval_us=SECOND,
    )
    results = await runs.go()
    assert sorted(tries) == ["a", "b"]
    assert [pause_us for _, _, pause_us in lake.errors] == [0, 0]
    assert results.failed == {"a": error, "b": error}


async def test_an_unforeseen_error_of_one_source_stops_no_other(tmp_path: Path) -> None:
    """The error counts as one of tidelog, and names the source."""
    lake = Lake(tmp_path)
    location = await lake.open("a", "b")

    async def run(name: str, tell: Tell) -> Summary:
        if name == "a":
            raise ZeroDivisionError
        await lake.clock.sleep(SECOND)
        return Summary(rows=7)

    results = await AllSources(controller=location.controller, clock=lake.clock, run=run).go()
    assert isinstance(results.failed["a"], InvariantError)
    assert results.summaries == {"b": Summary(rows=7)}


async def test_a_catalog_that_cannot_be_read_later_stops_no_source(tmp_path: Path) -> None:
    """The run reports it, continues with the sources that it knows, and looks again."""
    lake = Lake(tmp_path)
    location = await lake.open("a")
    looks = 0

    class Failing:
        async def catalog(self) -> object:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise LocationError("away")
            return await location.controller.catalog()

    async def run(name: str, tell: Tell) -> Summary:
        while looks < 3:
            await lake.clock.sleep(SECOND // 10)
        return Summary(rows=1)

    runs = AllSources(
        controller=Failing(),  # type: ignore[arg-type]
        clock=lake.clock,
        run=run,
        on_error=lambda *told: lake.errors.append(told),
        stop=lambda: looks >= 3,
        follow=True,
        interval_us=SECOND,
    )
    results = await runs.go()
    assert [(name, str(error), us) for name, error, us in lake.errors] == [(None, "away", SECOND)]
    assert results.summaries["a"].rows == 1


async def test_an_interrupted_run_loses_and_repeats_no_row(tmp_path: Path) -> None:
    """Ctrl-C cancels all runs at once; the next run continues after the committed ticks."""
    lake = Lake(tmp_path)
    location = await lake.open("a", "b")
    for name in "ab":
        for n in range(10):
            lake.write(name, f"{n}.jsonl", n)
    enough = asyncio.Event()

    def count(*_: object) -> None:
        if len(lake.ticks) >= 4:
            enough.set()

    task = asyncio.create_task(lake.run(location, on_tick=count))
    await enough.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [one for one in asyncio.all_tasks() if one.get_name().startswith("ingest")]

    await location.sources.ingest_all()
    assert [await numbers(location, name) for name in "ab"] == [[*range(10)]] * 2


async def test_one_source_merges_at_a_time(tmp_path: Path) -> None:
    """A merge needs memory, so the sources of one process take turns with them."""
    lake = Lake(tmp_path)
    location = await lake.open("a")
    for n in range(20):
        lake.write("a", f"{n:02}.jsonl", n)
        await location.sources.ingest_all()
    ingester = await location.sources.ingester("a")
    shard, turns = ingester.outputs[0], Turns()
    merges = BackgroundMerges([shard], turns.merging)
    batches = len(shard.state.batches)

    await turns.merging.acquire()
    merges.look()
    assert merges._task is not None
    await asyncio.wait([merges._task], timeout=0.2)
    assert len((await shard.refresh()).batches) == batches
    turns.merging.release()
    await asyncio.wait([merges._task], timeout=1.0)
    assert shard.machine.has_riders
    assert not turns.merging.locked(), "a merge that waits for its commit needs no memory"
    await merges.stop()
    assert len((await shard.refresh()).batches) < batches


def test_counts_of_repeated_runs_add_up() -> None:
    """Sizes and times are those of the newest run; counts are sums."""
    first = Summary(rows=1, bad=2, dropped={"x": 1}, left_bytes=9, upper=5)
    newest = Summary(rows=10, ticks=1, dropped={"x": 2, "y": 1}, left_bytes=3, upper=7)

    both = with_counts_of(newest, first)
    assert (both.rows, both.bad, both.ticks, dict(both.dropped)) == (11, 2, 1, {"x": 3, "y": 1})
    assert (both.left_bytes, both.upper) == (3, 7)


async def test_a_source_dropped_before_its_run_is_no_failure(tmp_path: Path) -> None:
    """Another process may drop a source between the listing and the start of its run."""
    lake = Lake(tmp_path)
    location = await lake.open("a")

    async def run(name: str, tell: Tell) -> Summary:
        raise NoSuchCollection("no source")

    results = await AllSources(
        controller=location.controller,
        clock=lake.clock,
        run=run,
        on_error=lambda *told: lake.errors.append(told),
    ).go()
    assert (results.failed, len(lake.errors)) == ({}, 1)
    results.check()
