"""The store on a file system: durable, whole, and never two versions under one e_tag."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clocks import StuckClock, SwiftClock

from tidelog.clock import SystemClock
from tidelog.errors import (
    LocationError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    TidelogError,
)
from tidelog.store import local_disk, local_files
from tidelog.store.local import LocalStore

CLOCK = SystemClock()


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def keys_of(store: LocalStore, prefix: str = "", after: str | None = None) -> list[str]:
    return [entry.key async for entry in store.list(prefix, after=after)]


def test_reading_makes_nothing(tmp_path: Path) -> None:
    """A typing error in a path must not leave a directory behind."""
    store = LocalStore(tmp_path / "lake", clock=CLOCK)

    async def run() -> None:
        with pytest.raises(ObjectNotFound):
            await store.get("a")
        with pytest.raises(ObjectNotFound):
            await store.refresh("a", "e")
        assert await keys_of(store) == []
        await store.delete(["a", "b/c"])
        with pytest.raises(ObjectChanged):
            await store.put("a", b"", if_match="e")

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_objects_stays(tmp_path: Path) -> None:
    """Temporary files and locks go, else a disk would fill with one for every key."""
    store = LocalStore(tmp_path, clock=CLOCK)

    async def run() -> None:
        e_tag = await store.put("a/b", b"1", if_absent=True)
        await store.put("a/b", b"2", if_match=e_tag)
        await store.put("a/b", b"3")
        with pytest.raises(ObjectExists):
            await store.put("a/b", b"4", if_absent=True)
        await store.put("gone", b"5")
        await store.delete(["gone"])

    asyncio.run(run())
    assert files_below(tmp_path) == ["a/b"]


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    """A day is long enough for any writer that lives."""
    temporary = tmp_path / ".tidelog" / "tmp"
    temporary.mkdir(parents=True)
    old, new = temporary / "old", temporary / "new"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (0, 0))

    asyncio.run(LocalStore(tmp_path, clock=CLOCK).put("a", b""))

    assert not old.exists()
    assert new.exists()


def test_an_e_tag_never_comes_twice(tmp_path: Path) -> None:
    """Not even when the clock stands still, or goes back, and bodies and inodes repeat."""
    clock = StuckClock()
    store = LocalStore(tmp_path, clock=clock)

    async def run() -> list[str]:
        e_tags = [await store.put("head", b"same", if_absent=True)]
        for number in range(20):
            clock.wall_us -= number % 3
            e_tags.append(await store.put("head", b"same", if_match=e_tags[-1]))
            e_tags.append(await store.put("head", b"same"))
        return e_tags

    e_tags = asyncio.run(run())
    assert len(set(e_tags)) == len(e_tags)


def test_coarse_file_times_are_stepped_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems keep whole seconds only; two versions differ there too."""
    set_exactly = os.utime

    def set_seconds(path: int, ns: tuple[int, int]) -> None:
        seconds = ns[1] // 1_000_000_000 * 1_000_000_000
        set_exactly(path, ns=(seconds, seconds))

    monkeypatch.setattr(local_files.os, "utime", set_seconds)
    store = LocalStore(tmp_path, clock=StuckClock())

    async def run() -> list[str]:
        return [await store.put("head", b"same") for _ in range(5)]

    assert len(set(asyncio.run(run()))) == 5


def test_files_and_directories_in_the_way(tmp_path: Path) -> None:
    """Object stores may have both a and a/b, a file system not: said in a sentence."""
    store = LocalStore(tmp_path, clock=CLOCK)

    async def run() -> None:
        await store.put("a", b"1")
        await store.put("d/e", b"2")
        for key in ("a/b", "a/b/c", "d"):
            for if_absent in (True, False):
                with pytest.raises(LocationError) as failed:
                    await store.put(key, b"", if_absent=if_absent)
                assert failed.value.outcome is Outcome.NOT_APPLIED
                assert "use another key" in str(failed.value)
        for key in ("a/b", "d"):
            with pytest.raises(ObjectNotFound):
                await store.get(key)
            await store.delete([key])
        assert await keys_of(store) == ["a", "d/e"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "not permit")],
)
def test_a_full_or_closed_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    """The person who reads it must know what to do, the program that nothing was changed."""

    def fail(*_: object, **__: object) -> str:
        raise OSError(code, os.strerror(code))

    store = LocalStore(tmp_path, clock=CLOCK)
    asyncio.run(store.put("a", b"old"))
    monkeypatch.setattr(local_files, "write_temporary", fail)

    with pytest.raises(LocationError, match=words) as failed:
        asyncio.run(store.put("a", b"new"))
    assert failed.value.outcome is Outcome.NOT_APPLIED
    assert asyncio.run(store.get("a")).data == b"old"


def test_a_failed_last_sync_leaves_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object is in its place, but a power loss may take it back."""
    store = LocalStore(tmp_path, clock=CLOCK)
    asyncio.run(store.put("a", b"old"))

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(local_files, "sync_directory", fail)
    with pytest.raises(LocationError) as failed:
        asyncio.run(store.put("a", b"new"))
    assert failed.value.outcome is Outcome.UNKNOWN


def test_every_new_directory_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is lost with the name of any directory above it, so each is made durable."""
    synced: list[str] = []
    sync = local_files.sync_directory

    def remember(path: str) -> None:
        synced.append(os.path.relpath(path, tmp_path))
        sync(path)

    monkeypatch.setattr(local_files, "sync_directory", remember)
    store = LocalStore(tmp_path / "lake", clock=CLOCK)
    asyncio.run(store.put("a/b/c", b"1"))
    assert synced == [".", "lake", "lake/a", "lake/a/b"]
    asyncio.run(store.put("a/b/d", b"1"))
    assert synced[4:] == ["lake/a/b"]


def test_directories_that_were_taken_away_come_back(tmp_path: Path) -> None:
    """Somebody may clear a lake with rm while a process still has it open."""
    store = LocalStore(tmp_path / "lake", clock=CLOCK)

    async def run() -> None:
        await store.put("a/b", b"1")
        os.rename(tmp_path / "lake", tmp_path / "away")
        with pytest.raises(LocationError):
            await store.put("a/b", b"2")
        await store.put("a/b", b"3")
        assert (await store.get("a/b")).data == b"3"

    asyncio.run(run())


def test_a_lock_held_for_ever_is_reported(tmp_path: Path) -> None:
    """A stopped process must not stop others silently; creating needs no lock at all."""
    store = LocalStore(tmp_path, clock=SwiftClock())

    async def run() -> None:
        e_tag = await store.put("a", b"1")
        lock = local_disk.Disk(str(tmp_path))._lock_path("a")
        with local_files.try_lock(lock) as held:
            assert held
            with pytest.raises(LocationError, match="30 s") as failed:
                await store.put("a", b"2", if_match=e_tag)
            assert failed.value.outcome is Outcome.NOT_APPLIED
            with pytest.raises(LocationError):
                await store.delete(["a"])
            with pytest.raises(ObjectExists):
                await store.put("a", b"3", if_absent=True)
        await store.put("a", b"4", if_match=e_tag)

    asyncio.run(run())


def test_links_are_followed_but_not_for_ever(tmp_path: Path) -> None:
    """Users link directories into the directories that they have ingested, sometimes in a ring."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"1")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "y").write_bytes(b"2")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "ring").symlink_to(root)
    (root / "a" / "self").symlink_to(root / "a" / "self")
    (root / "dangling").symlink_to(tmp_path / "nothing")
    (root / "file").symlink_to(tmp_path / "elsewhere" / "x")
    os.mkfifo(root / "pipe")
    store = LocalStore(root, clock=CLOCK)

    async def run() -> None:
        assert await keys_of(store) == ["a/y", "file", "linked/x"]
        assert (await store.get("linked/x")).data == b"1"
        with pytest.raises(ObjectNotFound):
            await store.get("pipe")
        with pytest.raises(TidelogError):
            await store.get("a/self")

    asyncio.run(run())


def test_listing_reads_only_directories_that_can_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that follows a log lists after its last key: old directories are not opened."""
    store = LocalStore(tmp_path, clock=CLOCK)
    opened: list[str] = []
    scan = os.scandir

    def remember(path: str) -> object:
        opened.append(os.path.relpath(path, tmp_path))
        return scan(path)

    async def run() -> None:
        for number in range(5):
            await store.put(f"log/b{number}/f", b"")
        await store.put("other/f", b"")
        monkeypatch.setattr("tidelog.store.local_walk.os.scandir", remember)
        assert await keys_of(store, "log/", after="log/b3/e") == ["log/b3/f", "log/b4/f"]

    asyncio.run(run())
    assert opened == ["log", "log/b3", "log/b4"]


def test_what_vanishes_while_listing_is_left_out(tmp_path: Path) -> None:
    """Collectors delete while others list."""
    store = LocalStore(tmp_path, clock=CLOCK)

    async def run() -> list[str]:
        await asyncio.gather(*(store.put(f"d{n % 2}/{n:03}", b"") for n in range(100)))
        seen = []
        async for entry in store.list(""):
            seen.append(entry.key)
            if len(seen) == 1:
                for number in range(50, 100):
                    (tmp_path / f"d{number % 2}" / f"{number:03}").unlink()
                (tmp_path / "d1").rename(tmp_path / ".tidelog" / "away")
        return seen

    seen = asyncio.run(run())
    assert seen[0] == "d0/000"
    assert seen == sorted(seen)
    assert len(seen) <= 50


def test_a_directory_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To leave it out would be a lie about what is there."""

    def refuse(path: str) -> object:
        raise PermissionError(errno.EACCES, "denied", path)

    monkeypatch.setattr("tidelog.store.local_walk.os.scandir", refuse)
    with pytest.raises(LocationError, match="not permit"):
        asyncio.run(keys_of(LocalStore(tmp_path, clock=CLOCK)))


def test_a_file_that_changes_under_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and e_tag must be of one version, or a source would be recorded wrongly."""
    path = tmp_path / "growing"
    path.write_bytes(b"1")
    store = LocalStore(tmp_path, clock=CLOCK)
    read = local_files.read_range
    changes = 2

    def read_and_grow(descriptor: int, size: int, start: int, limit: int | None) -> bytes:
        nonlocal changes
        if changes:
            changes -= 1
            path.write_bytes(path.read_bytes() + b"1")
        return read(descriptor, size, start, limit)

    monkeypatch.setattr(local_files, "read_range", read_and_grow)
    assert asyncio.run(store.get("growing")).data == b"111"
    changes = 100
    with pytest.raises(LocationError, match="changed in place"):
        asyncio.run(store.get("growing"))


def _create_all(root: str, rounds: int, writer: int, won: multiprocessing.Queue[tuple[int, int]]) -> None:
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
    winners = sorted(won.get(timeout=15) for _ in range(rounds))
    for worker in workers:
        worker.join(timeout=15)

    assert [number for number, _ in winners] == list(range(rounds))
    assert won.empty()
    for number, writer in winners:
        assert (tmp_path / "slot" / str(number)).read_text() == str(writer)
    assert (tmp_path / "counter").read_text() == str(writers * times)


_PUT_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from tidelog.clock import SystemClock
from tidelog.store.local import LocalStore

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
    """After kill -9, at any moment, each object is the old one or the new one, whole."""
    store = LocalStore(tmp_path, clock=CLOCK)
    begin = time.monotonic()
    kills = 0
    while kills < 12 and time.monotonic() - begin < 4:
        child = subprocess.Popen(
            [sys.executable, "-c", _PUT_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.005 + 0.02 * CLOCK.uniform())  # Long enough to be somewhere in a put.
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        kills += 1
        asyncio.run(_check_whole(store))
    assert kills >= 3


async def _check_whole(store: LocalStore) -> None:
    async for entry in store.list(""):
        body = (await store.get(entry.key)).data
        assert body == body[:8] * 4_000, entry.key
    # A lock that a killed process held is nobody's.
    await store.put("head", b"00000000" * 4_000)
