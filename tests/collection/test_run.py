"""Runs of an ingester: up to the head, with `follow`, and through failures of the store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kit.clocks import SwiftClock
from kit.sources import bind, make_shards_alone
from tidelog.collection.ingest.health import Health, decode_health, encode_health, health_path
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.run import TRIES_ONCE, run_ingest
from tidelog.collection.ingest.status import source_status
from tidelog.collection.ingest.summary import RunProgress, Summary
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import LocationError, SourceDropped, StoreRefused, TidelogError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import NO_FAULT, Fault, FaultyStore, Request

SECOND = 1_000_000
Toss = Callable[[Request], Fault]


class Place:
    """A location in memory with one source of a few lines. Its store fails as ``toss`` decides."""

    def __init__(self, folder: Path, *, timed: bool = True) -> None:
        self.folder = folder
        self.timed = timed
        self.clock = SwiftClock()
        self.toss: Toss = lambda request: NO_FAULT
        self.store = FaultyStore(MemoryStore(name="memory://"), toss=self._toss)
        self.told: list[RunProgress] = []
        self.write("1.jsonl", 1, 2, 3)

    def _toss(self, request: Request) -> Fault:
        return self.toss(request)

    def write(self, name: str, *times: int) -> None:
        lines = [json.dumps({"at": time, "text": "x" * 20}) + "\n" for time in times]
        (self.folder / name).write_text("".join(lines))

    async def location(self, *, create: bool = False) -> Location:
        return await open_location("memory://", create=create, clock=self.clock, store=self.store)

    async def ingester(self, *, bytes_max: int = 60) -> Ingester:
        location = await self.location(create=True)
        if "s" not in (await location.controller.catalog()).sources:
            column = "at" if self.timed else None
            files = str(self.folder / "*.jsonl")
            schema = "at bigint, text varchar"
            spec = SourceSpec(name="s", files=files, time_column=column, schema=schema)
            await location.sources.create(spec)
        return await location.sources.ingester("s", bytes_max=bytes_max, final=False)

    async def run(
        self,
        ingester: Ingester,
        *,
        follow: bool = False,
        stop: Callable[[], bool] = lambda: False,
        on_tick: Callable[[RunProgress], None] | None = None,
    ) -> Summary:
        def tell(progress: RunProgress) -> None:
            self.told.append(progress)
            if on_tick is not None:
                on_tick(progress)

        return await run_ingest(
            ingester, follow=follow, interval_us=SECOND, on_tick=tell, stop=stop
        )

    async def health(self, ingester: Ingester) -> Health | None:
        return decode_health((await self.store.get(health_path(ingester.info.id))).data)


async def test_a_run_ends_at_the_head_of_its_start(tmp_path: Path) -> None:
    """Files that arrive later are for the next run, or a busy source would never finish."""
    place = Place(tmp_path)

    ingester = await place.ingester()
    first = await place.run(ingester, on_tick=lambda p: place.write("2.jsonl", 4, 5))
    second = await place.run(ingester)
    assert (first.rows, first.upper, first.left_bytes) == (3, 4, 0)
    assert (second.rows, second.upper) == (2, 6)


async def test_a_run_tells_of_its_start_and_of_each_tick(tmp_path: Path) -> None:
    """A run reports its start and each tick. The first report states the amount of input."""
    place = Place(tmp_path)

    summary = await place.run(await place.ingester())
    assert place.told[0].tick is None
    assert place.told[0].so_far.left_bytes == (tmp_path / "1.jsonl").stat().st_size
    assert [p.so_far.ticks for p in place.told] == list(range(summary.ticks + 1))
    assert summary.size_bytes == (tmp_path / "1.jsonl").stat().st_size
    assert summary.store.put_count > 0
    assert summary.to_dict()["rows"] == 3


async def test_an_idle_run_by_the_clock_ticks_once(tmp_path: Path) -> None:
    """The tick advances the upper. A half line that stays does not cause another tick."""
    place = Place(tmp_path, timed=False)
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('{"at": 9')

    ingester = await place.ingester(bytes_max=1_000)
    first, idle = await place.run(ingester), await place.run(ingester)
    assert first.rows == 3
    assert (idle.ticks, idle.rows, idle.left_bytes) == (1, 0, len('{"at": 9'))
    assert (idle.upper or 0) > (first.upper or 0)


async def test_a_binding_that_another_left_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binding of the other ingester is empty. Then the run takes the rows of the head."""
    make_shards_alone(monkeypatch)
    place = Place(tmp_path, timed=False)

    (tmp_path / "1.jsonl").rename(tmp_path / "later")
    other = await place.ingester()

    def no_commit(request: Request) -> Fault:
        changes_output = request.changes and other.outputs[0].id in request.key
        return Fault(happened=False) if changes_output else NO_FAULT

    place.toss = no_commit
    with pytest.raises(LocationError):
        await other.tick(await other.source.head())
    place.toss = lambda request: NO_FAULT
    (tmp_path / "later").rename(tmp_path / "1.jsonl")
    summary = await place.run(await place.ingester(bytes_max=1_000))
    assert (summary.ticks, summary.rows) == (2, 3)


async def test_who_follows_an_idle_source_writes_once_a_heartbeat(tmp_path: Path) -> None:
    """An idle tick costs a put per shard, so `follow` ticks once per heartbeat."""
    place = Place(tmp_path, timed=False)
    ingester = await place.ingester(bytes_max=1_000)
    begun_us = place.clock.monotonic_us()

    def seconds() -> float:
        return (place.clock.monotonic_us() - begun_us) / SECOND

    summary = await place.run(ingester, follow=True, stop=lambda: seconds() >= 600)
    assert summary.rows == 3
    assert 8 <= summary.ticks <= 11
    assert summary.store.list_count >= 300
    assert summary.store.put_count <= 60

    place.write("2.jsonl", 4)
    begun_us = place.clock.monotonic_us()
    told = len(place.told)
    await place.run(ingester, follow=True, stop=lambda: seconds() >= 3)
    assert place.told[-1].so_far.rows == 1, place.told[told:]


async def test_following_takes_what_comes_until_it_is_stopped(tmp_path: Path) -> None:
    """The ingester sleeps if nothing is left, looks again, and stops between ticks."""
    place = Place(tmp_path)

    def more(progress: RunProgress) -> None:
        if progress.so_far.rows == 3:
            place.write("2.jsonl", 4, 5)

    async def work() -> Summary:
        ingester = await place.ingester()
        return await place.run(
            ingester, follow=True, on_tick=more, stop=lambda: place.told[-1:] != [] and done()
        )

    def done() -> bool:
        return place.told[-1].so_far.rows == 5 and place.clock.slept_us > 3 * SECOND

    assert (await work()).rows == 5


async def test_a_store_that_hiccups_is_waited_out(tmp_path: Path) -> None:
    """The run reports each failed try, and pauses grow. The rows are in once afterwards."""
    place = Place(tmp_path)

    def away(request: Request) -> Fault:
        is_away = place.told[-1].so_far.ticks == 0 and place.clock.slept_us < 2 * SECOND
        return Fault(told=False) if is_away else NO_FAULT

    ingester = await place.ingester()
    await ingester.tick(await ingester.source.head())
    place.told.clear()
    summary = await place.run(ingester, on_tick=lambda _: setattr(place, "toss", away))
    pauses = [p.pause_us for p in place.told if p.trouble is not None]
    assert len(pauses) > 1
    assert all(earlier <= later for earlier, later in pairwise(pauses))
    assert (summary.rows, summary.upper, summary.left_bytes) == (2, 4, 0)


@pytest.mark.parametrize("follow", [False, True])
async def test_a_store_that_stays_away(tmp_path: Path, follow: bool) -> None:
    """A single run gives up after some tries. A run with `follow` never does."""
    place = Place(tmp_path)
    stopped = 20

    async def work() -> None:
        ingester = await place.ingester()
        place.toss = lambda request: Fault(happened=False)
        await place.run(
            ingester,
            follow=follow,
            stop=lambda: sum(p.trouble is not None for p in place.told) >= stopped,
        )

    if follow:
        await work()
        assert len(place.told) >= stopped
    else:
        with pytest.raises(LocationError):
            await work()
        assert sum(p.trouble is not None for p in place.told) == TRIES_ONCE - 1


async def test_credentials_that_are_refused_are_not_tried_again(tmp_path: Path) -> None:
    """After refused credentials, the run does not retry."""
    place = Place(tmp_path)

    def refuse(request: Request) -> Fault:
        raise StoreRefused("denied")

    async def work() -> None:
        ingester = await place.ingester()
        place.toss = refuse
        await place.run(ingester, follow=True)

    with pytest.raises(StoreRefused):
        await work()
    assert not [p for p in place.told if p.trouble is not None]


async def stopped_by(place: Place, spoil: Callable[[Location], Awaitable[None]]) -> Ingester:
    ingester = await place.ingester()
    await place.run(ingester)
    await spoil(await place.location())
    await ingester.refresh()
    with pytest.raises(TidelogError):
        await place.run(ingester)
    return ingester


async def test_health_says_what_a_run_stopped_with(tmp_path: Path) -> None:
    """The status shows the error that stopped a run. A later user sees there why no rows arrive."""
    place = Place(tmp_path)

    async def lose(location: Location) -> None:
        place.write("2.jsonl", 7)
        assert await bind(await place.ingester())
        (tmp_path / "2.jsonl").unlink()

    ingester = await stopped_by(place, lose)
    status = await source_status(ingester)
    assert status.run is not None
    assert "no longer exists" in (status.run.error or "")
    assert status.run.error_kind == "gone"
    assert not status.run.running
    assert (status.upper, status.files) == (4, 1)


async def test_a_source_that_was_dropped_leaves_no_health(tmp_path: Path) -> None:
    """A run of a dropped source leaves no status, because no command could show it."""
    place = Place(tmp_path)

    ingester = await place.ingester()
    await (await place.location()).sources.drop("s")
    with pytest.raises(SourceDropped):
        await place.run(ingester)
    assert [e async for e in place.store.list("status/")] == []


@pytest.mark.parametrize(("seconds", "reports"), [(6, 1), (61, 3)])
async def test_health_is_told_while_a_run_goes_on(
    tmp_path: Path, seconds: int, reports: int
) -> None:
    """The status shows a killed run: soon after the start of a run, and then each minute."""
    place = Place(tmp_path)
    seen: list[Health | None] = []

    async def work() -> None:
        ingester = await place.ingester()

        def slow(progress: RunProgress) -> None:
            place.clock.slept_us += seconds * SECOND

        await place.run(ingester, on_tick=slow)
        assert len(place.told) == 4  # The start, and three ticks.
        seen.append(await place.health(ingester))

    puts = 0

    def count(request: Request) -> Fault:
        nonlocal puts
        puts += request.op == "put" and request.key.startswith("status/")
        return NO_FAULT

    place.toss = count
    await work()
    assert puts == reports + 1  # One at the end.
    assert seen[0] is not None
    assert not seen[0].running


async def test_a_run_that_waits_is_seen_to_be_alive(tmp_path: Path) -> None:
    """A source may be idle for days. Its status must differ from that of a killed run."""
    place = Place(tmp_path)

    ingester = await place.ingester()
    told_at: list[int] = []

    def stop() -> bool:
        return place.clock.slept_us > 1_000 * SECOND

    def count(request: Request) -> Fault:
        if request.op == "put" and request.key.startswith("status/"):
            told_at.append(place.clock.slept_us // SECOND)
        return NO_FAULT

    place.toss = count
    await place.run(ingester, follow=True, stop=stop)
    assert await place.health(ingester) is not None
    # When the wait begins, three times within 1,000 seconds, and at the end.
    assert (told_at[0], len(told_at)) == (0, 5)


async def test_a_failed_write_of_the_status_does_not_stop_the_run(tmp_path: Path) -> None:
    """A failure to write the status does not stop the run."""
    place = Place(tmp_path)
    place.toss = lambda r: Fault(happened=not r.key.startswith("status/"))

    async def work() -> int:
        return (await place.run(await place.ingester())).rows

    assert await work() == 3


async def test_status_of_a_source_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status shows the facts of the location, and the error of the source."""
    place = Place(tmp_path)

    ingester = await place.ingester()
    await place.run(ingester)

    async def away(*_: object) -> int:
        raise LocationError("the bucket is gone")

    monkeypatch.setattr(type(ingester.source), "head", away)
    status = await source_status(ingester)
    assert (status.left_bytes, status.trouble) == (None, "the bucket is gone")
    assert status.upper == 4


def test_health_survives_its_bytes_and_garbage_is_none() -> None:
    """The status object is a hint, so unreadable bytes are no error."""
    health = Health(
        engine="local",
        started_us=1,
        updated_us=2,
        running=True,
        upper=None,
        ticks=3,
        rows=4,
        late=5,
        bad=6,
        error="why",
        error_kind="gone",
    )

    assert decode_health(encode_health(health)) == health
    assert b'"told_us":2' in encode_health(health), "the stored name is that of older versions"
    for garbage in (b"", b"{}", b"hello", encode_health(health)[:-1], b'{"engine": 1}'):
        assert decode_health(garbage) is None
