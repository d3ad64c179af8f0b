"""The local store shared by processes, some of which are killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

from tidelog.core.clock import SystemClock
from tidelog.errors import ObjectChanged, ObjectExists
from tidelog.store.local.store import LocalStore

CLOCK = SystemClock()


def _create_all(
    root: str, rounds: int, writer: int, won: multiprocessing.Queue[tuple[int, int]]
) -> None:
    store = LocalStore(Path(root), clock=CLOCK)

    async def run() -> None:
        for number in range(rounds):
            try:
                await store.put(f"slot/{number}", f"{writer}".encode(), if_absent=True)
            except ObjectExists:
                continue
            won.put((number, writer))

    asyncio.run(run())


def _increment(root: str, times: int) -> None:
    store = LocalStore(Path(root), clock=CLOCK)

    async def run() -> None:
        done = 0
        while done < times:
            found = await store.get("counter")
            try:
                await store.put("counter", b"%d" % (int(found.data) + 1), if_match=found.e_tag)
                done += 1
            except ObjectChanged:
                await CLOCK.sleep(int(2_000 * CLOCK.uniform()))

    asyncio.run(run())


def test_processes_create_and_replace_as_one(tmp_path: Path) -> None:
    """Exactly one process creates each slot, and no process's increment is lost."""
    spawn = multiprocessing.get_context("spawn")
    won: multiprocessing.Queue[tuple[int, int]] = spawn.Queue()
    rounds, writers, times = 60, 4, 15
    asyncio.run(LocalStore(tmp_path, clock=CLOCK).put("counter", b"0"))
    workers = [
        spawn.Process(target=_create_all, args=(str(tmp_path), rounds, writer, won))
        for writer in range(writers)
    ] + [spawn.Process(target=_increment, args=(str(tmp_path), times)) for _ in range(writers)]

    for worker in workers:
        worker.start()
    winners = sorted(won.get(timeout=120) for _ in range(rounds))
    for worker in workers:
        worker.join(timeout=120)

    assert [number for number, _ in winners] == list(range(rounds))
    assert won.empty()
    for number, writer in winners:
        assert (tmp_path / "slot" / str(number)).read_text() == str(writer)
    assert (tmp_path / "counter").read_text() == str(writers * times)


_PUT_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from tidelog.core.clock import SystemClock
from tidelog.store.local.store import LocalStore

async def run():
    store = LocalStore(Path(sys.argv[1]), clock=SystemClock())
    number = 0
    print("ready", flush=True)
    while True:
        body = b"%08d" % (number % 10**8) * 4_000
        await store.put("head", body)
        await store.put(f"each/{number % 50}", body)
        number += 1

asyncio.run(run())
"""


def test_kill_leaves_whole_objects(tmp_path: Path) -> None:
    """After kill -9 at any moment, each object is whole."""
    store = LocalStore(tmp_path, clock=CLOCK)
    begin = time.monotonic()
    kills = 0
    # A slow machine starts few processes in four seconds.
    while kills < 3 or (kills < 25 and time.monotonic() - begin < 4):
        child = subprocess.Popen(
            [sys.executable, "-c", _PUT_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.005 + 0.02 * CLOCK.uniform())  # Long enough to be inside a put.
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        kills += 1
        asyncio.run(_check_whole(store))


async def _check_whole(store: LocalStore) -> None:
    async for entry in store.list(""):
        body = (await store.get(entry.key)).data
        assert body == body[:8] * 4_000, entry.key
    # The lock of a killed process is free.
    await store.put("head", b"00000000" * 4_000)
