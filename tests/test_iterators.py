"""Iterators that a caller leaves early: they end without a message, with their tasks and requests.

A loop that is left by ``break`` drops its iterator, and a program may end right after that.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidelog
from tidelog.blocking.portal import Portal
from tidelog.collection.spec_types import SourceSpec
from tidelog.keyed.values import Keys
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object

LONG = 20  # Turns of the loop that a request takes.


class SlowStore(MemoryStore):
    """A store whose requests take some turns of the loop, and which counts those under way."""

    turns = 0
    under_way = 0

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        await self._wait()
        return await super().get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        await self._wait()
        return await super().refresh(key, e_tag)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        await self._wait()
        async for entry in super().list(prefix, after=after):
            yield entry

    async def _wait(self) -> None:
        self.under_way += 1
        try:
            for _ in range(self.turns):
                await asyncio.sleep(0)
        finally:
            self.under_way -= 1


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> SlowStore:
    store = SlowStore()
    asyncio.run(fill(store, tmp_path_factory.mktemp("rows")))
    return store


async def fill(store: SlowStore, folder: Path) -> None:
    lake = await open_location("memory://", create=True, store=store)
    for protocol in ("slot", "manifest"):
        async with await lake.logs.create(protocol, protocol=protocol) as log:
            for number in range(12):
                await log.append([b"%d" % number])
            if protocol == "slot":
                await log.create_pin("pin", start=1, limit=12)
    keyed = await lake.keyed.create("keyed")
    for number in range(20):
        await keyed.append([(b"a", b"%d" % number), (b"b", b"x")])
        if number in (5, 10):
            await keyed.seal()
            await keyed.compact(full=True)
    await keyed.close()
    shard = lake.shard("shard", schema=pa.schema([("k", pa.int64())]), key=["k"])
    drawn = np.random.default_rng(1).integers(0, 2**60, (6, 20_000))
    for time, keys in enumerate(drawn):
        rows = {"k": keys, "_time": np.full(len(keys), time), "_diff": np.ones(len(keys), int)}
        await shard.append(pa.table(rows), time, time + 1)
    (folder / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(3_000)))
    await lake.sources.create(SourceSpec(name="c", files=str(folder / "*.jsonl")))
    ingester = await lake.sources.ingester("c", bytes_max=10_000)
    head = await ingester.source.head()
    while (tick := await ingester.tick(head)) is not None and tick.left_bytes:
        pass


AWAITED: dict[str, Callable[[Location], Awaitable[AsyncIterator[object]]]] = {}
BLOCKING: dict[str, Callable[[tidelog.Location], Iterator[object]]] = {}


def iterator(
    name: str,
    awaited: Callable[[Any], Awaitable[Any]],
    opened: Callable[[tidelog.Location], Any],
    begun: Callable[[Any], Any],
) -> None:
    async def begin(lake: Location) -> AsyncIterator[object]:
        found: AsyncIterator[object] = aiter(begun(await awaited(lake)))
        return found

    AWAITED[name] = begin
    BLOCKING[name] = lambda lake: iter(begun(opened(lake)))


async def shard_of(lake: Location) -> Any:
    return lake.shard("shard")


def log_named(name: str) -> Callable[[Any], Any]:
    return lambda lake: lake.log(name)


for protocol in ("slot", "manifest"):
    opened = log_named(protocol)
    iterator(f"{protocol} scan", opened, opened, lambda log: log.scan())
    iterator(f"{protocol} follow", opened, opened, lambda log: log.follow())
iterator(
    "pin",
    lambda lake: lake.log("slot"),
    lambda lake: lake.log("slot"),
    lambda log: log.scan_pin("pin"),
)
KEYED: dict[str, Callable[[Any], Any]] = {
    "scan": lambda log: log.scan(b"a"),
    "newest": lambda log: log.scan(b"a", newest_first=True),
    "prefix": lambda log: log.scan(Keys.all()),
    "follow": lambda log: log.follow(b"a", start=0),
    "follow all": lambda log: log.follow(start=0),
    "keys": lambda log: log.keys(),
}
for name, begun in KEYED.items():
    iterator(
        f"keyed {name}",
        lambda lake: lake.keyed.open("keyed"),
        lambda lake: lake.keyed.open("keyed"),
        begun,
    )
    iterator(
        f"reader {name}",
        lambda lake: lake.keyed.reader("keyed"),
        lambda lake: lake.keyed.reader("keyed"),
        begun,
    )
iterator("listen", shard_of, lambda lake: lake.shard("shard"), lambda shard: shard.listen(0))
iterator(
    "batches",
    lambda lake: lake.shard("shard").snapshot(5),
    lambda lake: lake.shard("shard").snapshot(5),
    lambda snapshot: snapshot.to_batches(),
)
iterator(
    "collection",
    lambda lake: lake.collection("c"),
    lambda lake: lake.collection("c"),
    lambda collection: collection.scan(),
)


async def contents_of(lake: Location) -> Any:
    return await (await lake.collection("c")).snapshot()


iterator(
    "contents",
    contents_of,
    lambda lake: lake.collection("c").snapshot(),
    lambda contents: contents.to_batches(),
)


def run_watched(main: Callable[[], Awaitable[None]]) -> list[str]:
    """Run a program in a loop of its own; return what the loop reports, also at its end."""
    reports: list[str] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reports.append(str(context)))
        await main()

    asyncio.run(watched())
    gc.collect()
    return reports


async def still_running() -> Sequence[str]:
    """Return the tasks that do not end by themselves, but for the poll that followers share."""
    own = asyncio.current_task()
    others = {
        one for one in asyncio.all_tasks() if one is not own and one.get_name() != "keyed feed"
    }
    if others:
        _, others = await asyncio.wait(others, timeout=20)
    return [task.get_name() for task in others]


@pytest.mark.parametrize("name", AWAITED)
def test_an_awaited_iterator_that_is_left_ends_with_the_program(
    name: str, filled: SlowStore
) -> None:
    """The program returns right after the loop, and asyncio reports nothing."""
    filled.turns = 0

    async def main() -> None:
        lake = await open_location("memory://", store=filled)
        found = await AWAITED[name](lake)
        filled.turns = LONG
        async for _ in found:
            break
        del found

    assert run_watched(main) == []
    assert filled.under_way == 0


@pytest.mark.parametrize("name", AWAITED)
def test_an_awaited_iterator_that_is_left_ends_its_tasks(name: str, filled: SlowStore) -> None:
    """They end while the program goes on, except the poll that followers of a handle share."""
    filled.turns = filled.under_way = 0
    left: list[str] = []

    async def main() -> None:
        lake = await open_location("memory://", store=filled)
        found = await AWAITED[name](lake)
        filled.turns = LONG
        async for _ in found:
            break
        del found
        await asyncio.sleep(0)  # Here the loop meets the iterator that was dropped.
        left.extend(await still_running())

    assert run_watched(main) == []
    assert left == []


@pytest.mark.parametrize("name", BLOCKING)
def test_a_blocking_iterator_that_is_left_ends_its_tasks(name: str, filled: SlowStore) -> None:
    """At once, with the requests under way; and the connection's end reports nothing."""
    filled.turns = 0
    reports: list[str] = []
    portal = Portal()
    lake = tidelog.Location(portal, portal.run(open_location("memory://", store=filled)))

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reports.append(str(context)))

    portal.run(watch())
    found = BLOCKING[name](lake)
    filled.turns = LONG
    for _ in found:
        break
    del found

    assert portal.run(still_running()) == []
    assert name.endswith(("follow", "follow all")) or filled.under_way == 0
    gc.collect()
    lake.close()
    gc.collect()
    assert reports == []
    assert filled.under_way == 0


PROGRAM = """
import sys, tidelog
lake = tidelog.connect(sys.argv[1], create=True)
log = lake.logs.create("log")
keyed = lake.keyed.create("keyed")
for number in range(20):
    log.append([b"%d" % number])
    keyed.append([(b"a", b"%d" % number)])
for _ in log.scan(): break
for _ in log.follow(): break
for _ in keyed.scan(b"a"): break
for _ in keyed.scan(tidelog.Keys.all()): break
for _ in keyed.follow(b"a", start=0): break
for _ in keyed.keys(): break
kept = [iter(log.scan()), iter(log.follow()), iter(keyed.scan(b"a")), iter(keyed.follow(start=0))]
for one in kept: next(one)
print("done")
"""


def test_a_program_that_closes_nothing_ends_without_a_message(tmp_path: Path) -> None:
    """Python collects its iterators and its connection at the end, in any order."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
