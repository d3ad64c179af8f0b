"""The store on a file system: durable, whole, and with a new e-tag for each version."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from kit.clocks import StuckClock, SwiftClock
from tidelog.core.clock import SystemClock
from tidelog.errors import (
    LocationError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    StoreRefused,
)
from tidelog.store import conditional
from tidelog.store.local import disk as local_disk
from tidelog.store.local import files as local_files
from tidelog.store.local.store import LocalStore

CLOCK = SystemClock()


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def keys_of(store: LocalStore, prefix: str = "", after: str | None = None) -> list[str]:
    return [entry.key async for entry in store.list(prefix, after=after)]


async def test_reading_makes_nothing(tmp_path: Path) -> None:
    """Reads and deletes create no directory, because a mistyped path must leave nothing behind."""
    store = LocalStore(tmp_path / "lake", clock=CLOCK)

    with pytest.raises(ObjectNotFound):
        await store.get("a")
    with pytest.raises(ObjectNotFound):
        await store.refresh("a", "e")
    assert await keys_of(store) == []
    await store.delete(["a", "b/c"])
    with pytest.raises(ObjectChanged):
        await store.put("a", b"", if_match="e")
    assert os.listdir(tmp_path) == []


async def test_nothing_but_objects_stays(tmp_path: Path) -> None:
    """A store leaves no temporary file and no lock. Otherwise the disk would fill up."""
    store = LocalStore(tmp_path, clock=CLOCK)

    e_tag = await store.put("a/b", b"1", if_absent=True)
    await store.put("a/b", b"2", if_match=e_tag)
    await store.put("a/b", b"3")
    with pytest.raises(ObjectExists):
        await store.put("a/b", b"4", if_absent=True)
    await store.put("gone", b"5")
    await store.delete(["gone"])
    assert files_below(tmp_path) == ["a/b"]


async def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    """A put deletes temporary files of killed writers after a day."""
    temporary = tmp_path / ".tidelog" / "tmp"
    temporary.mkdir(parents=True)
    old, new = temporary / "old", temporary / "new"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (0, 0))

    await LocalStore(tmp_path, clock=CLOCK).put("a", b"")

    assert not old.exists()
    assert new.exists()


async def test_a_put_succeeds_next_to_files_that_it_cannot_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put succeeds even if it cannot delete another user's old temporary files."""
    (tmp_path / ".tidelog" / "tmp" / "directory").mkdir(parents=True)
    (theirs := tmp_path / ".tidelog" / "tmp" / "theirs").write_bytes(b"")
    for left in theirs.parent.iterdir():
        os.utime(left, (0, 0))
    unlink = os.unlink

    def not_theirs(path: str) -> None:
        if path == str(theirs):
            raise PermissionError(errno.EPERM, "Operation denies accessted")
        unlink(path)

    monkeypatch.setattr(os, "unlink", not_theirs)
    await LocalStore(tmp_path, clock=CLOCK).put("a", b"1")

    assert (tmp_path / "a").read_bytes() == b"1"
    assert theirs.exists()


async def test_an_e_tag_never_comes_twice(tmp_path: Path) -> None:
    """Two versions never share an e-tag, even if the clock stops or goes back."""
    clock = StuckClock()
    store = LocalStore(tmp_path, clock=clock)

    e_tags = [await store.put("head", b"same", if_absent=True)]
    for number in range(20):
        clock.wall_us -= number % 3
        e_tags.append(await store.put("head", b"same", if_match=e_tags[-1]))
        e_tags.append(await store.put("head", b"same"))
    assert len(set(e_tags)) == len(e_tags)


async def test_the_witness_of_a_deleted_object_does_not_fit_the_next(tmp_path: Path) -> None:
    """The e-tag of a deleted object never matches a later object, for any clock."""
    clock = StuckClock()
    lots = itertools.count(2**64, 7)
    store = LocalStore(tmp_path, clock=clock)

    e_tags = []
    with patch.object(clock, "unique", lambda: f"{next(lots):032x}"):
        for number in range(20):
            e_tags.append(await store.put("cursor", b"same", if_absent=number % 2 == 0))
            await store.delete(["cursor"])
        await store.put("cursor", b"same", if_absent=True)
        for e_tag in e_tags:
            with pytest.raises(ObjectChanged):
                await store.put("cursor", b"moved", if_match=e_tag)
    assert len(set(e_tags)) == len(e_tags)


async def test_a_clock_that_jumped_ahead_makes_no_object_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object stays writable after a jump of the clock, past the file system's last year."""
    set_exactly, latest_ns = os.utime, 15_032_385_535 * 10**9

    def set_what_there_is(path: int, ns: tuple[int, int]) -> None:
        set_exactly(path, ns=(min(ns[0], latest_ns), min(ns[1], latest_ns)))

    monkeypatch.setattr(os, "utime", set_what_there_is)
    clock = StuckClock()
    store, now_us = LocalStore(tmp_path, clock=clock), clock.wall_us
    clock.wall_us = 16_000_000_000 * 10**6  # The year 2477.
    e_tags = [await store.put("head", b"same")]
    e_tags.append(await store.put("head", b"same", if_match=e_tags[-1]))
    clock.wall_us = now_us
    e_tags.append(await store.put("head", b"same", if_match=e_tags[-1]))

    assert len(set(e_tags)) == 3


async def test_coarse_file_times_are_stepped_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions differ in e-tag even if the file system stores whole seconds only."""
    set_exactly = os.utime

    def set_seconds(path: int, ns: tuple[int, int]) -> None:
        seconds = ns[1] // 1_000_000_000 * 1_000_000_000
        set_exactly(path, ns=(seconds, seconds))

    monkeypatch.setattr(os, "utime", set_seconds)
    store = LocalStore(tmp_path, clock=StuckClock())

    async def run() -> list[str]:
        return [await store.put("head", b"same") for _ in range(5)]

    assert len(set(await run())) == 5


async def test_files_and_directories_in_the_way(tmp_path: Path) -> None:
    """A key that is a directory of another is refused: a file system cannot store both."""
    store = LocalStore(tmp_path, clock=CLOCK)

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


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "denies access")],
)
async def test_a_full_or_closed_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    """A full or read-only disk raises a clear LocationError with NOT_APPLIED."""

    def fail(*_: object, **__: object) -> str:
        raise OSError(code, os.strerror(code))

    store = LocalStore(tmp_path, clock=CLOCK)
    await store.put("a", b"old")
    monkeypatch.setattr(local_files, "write_temporary", fail)

    with pytest.raises(LocationError, match=words) as failed:
        await store.put("a", b"new")
    assert failed.value.outcome is Outcome.NOT_APPLIED
    assert (await store.get("a")).data == b"old"


@pytest.mark.parametrize("why", ["a directory", "a link loop", "read-only", "denied"])
async def test_what_no_wait_changes_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A fault that no wait can change raises StoreRefused at once, without retries."""
    if why == "a directory":
        (tmp_path / "a").mkdir()
    elif why == "a link loop":
        (tmp_path / "a").symlink_to("a")
    else:
        code = errno.EROFS if why == "read-only" else errno.EACCES
        fail = Mock(side_effect=OSError(code, os.strerror(code)))
        monkeypatch.setattr(local_files, "write_temporary", fail)
    clock = SwiftClock()

    with pytest.raises(StoreRefused) as failed:
        await conditional.create(LocalStore(tmp_path, clock=clock), "a", b"1", clock=clock)
    assert failed.value.outcome is Outcome.NOT_APPLIED
    assert clock.slept_us == 0


async def test_a_failed_last_sync_leaves_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put whose last sync fails reports UNKNOWN: a power loss may undo it."""
    store = LocalStore(tmp_path, clock=CLOCK)
    await store.put("a", b"old")

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(local_files, "sync_directory", fail)
    with pytest.raises(LocationError) as failed:
        await store.put("a", b"new")
    assert failed.value.outcome is Outcome.UNKNOWN


async def test_every_new_directory_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new directory is synced. A file is lost with the name of any directory above it."""
    synced: list[str] = []
    sync = local_files.sync_directory

    def remember(path: str) -> None:
        synced.append(os.path.relpath(path, tmp_path))
        sync(path)

    monkeypatch.setattr(local_files, "sync_directory", remember)
    store = LocalStore(tmp_path / "lake", clock=CLOCK, create=True)
    await store.put("a/b/c", b"1")
    assert synced == [".", "lake", "lake/a", "lake/a/b"]
    await store.put("a/b/d", b"1")
    assert synced[4:] == ["lake/a/b"]


def swap(lake: Path) -> None:
    """Put another directory in the place of the root, like a mount."""
    lake.rename(lake.with_name("disk"))
    lake.mkdir()


def unswap(lake: Path) -> None:
    shutil.rmtree(lake, ignore_errors=True)
    lake.with_name("disk").rename(lake)


async def lists(store: LocalStore) -> None:
    await keys_of(store)


REQUESTS: dict[str, Callable[[LocalStore], Awaitable[object]]] = {
    "put": lambda store: store.put("log/a/new/object", b"2"),
    "create": lambda store: store.put("log/a/x", b"2", if_absent=True),
    "replace": lambda store: store.put("log/a/b", b"2", if_match="e"),
    "get": lambda store: store.get("log/a/b"),
    "refresh": lambda store: store.refresh("log/a/b", "e"),
    "delete": lambda store: store.delete(["log/a/b"]),
    "list": lists,
    "folders": lambda store: store.folders("log/"),
}


@pytest.mark.parametrize("is_swapped", [True, False])
@pytest.mark.parametrize("request_kind", REQUESTS)
async def test_a_root_that_was_unmounted_or_moved_takes_nothing(
    request_kind: str, is_swapped: bool, tmp_path: Path
) -> None:
    """An object below an empty mount point would be hidden by the next mount: refused."""
    lake = tmp_path / "lake"
    lake.mkdir()
    store = LocalStore(lake, clock=CLOCK)
    await store.put("log/a/b", b"1")
    swap(lake)
    if not is_swapped:
        lake.rmdir()

    for _ in range(2):
        with pytest.raises(StoreRefused, match="no longer exists"):
            await REQUESTS[request_kind](store)
    assert files_below(lake) == []
    assert lake.exists() == is_swapped
    unswap(lake)
    await store.put("log/a/b", b"3")
    assert (await store.get("log/a/b")).data == b"3"


async def test_a_root_that_goes_before_the_first_put_takes_nothing(tmp_path: Path) -> None:
    """A store that has only read also recognises its root, and refuses a replaced one."""
    lake = tmp_path / "lake"
    lake.mkdir()
    await LocalStore(lake, clock=CLOCK).put("log/a/b", b"1")
    store = LocalStore(lake, clock=CLOCK, create=True)
    await store.get("log/a/b")
    swap(lake)

    with pytest.raises(StoreRefused, match="no longer exists"):
        await store.put("log/a/c", b"2")
    assert os.listdir(lake) == []


async def test_a_folder_that_was_moved_is_not_made_again(tmp_path: Path) -> None:
    """A moved folder is not created again: its new records would be damage after the move back."""
    store = LocalStore(tmp_path, clock=CLOCK)
    for key in ("log/a/b/c", "log/other/b/c"):
        await store.put(key, b"1")
    (tmp_path / "log" / "a").rename(tmp_path / "moved")

    for key in ("log/a/b/c", "log/a/new/c", "log/a/d"):
        for _ in range(2):
            with pytest.raises(StoreRefused, match="no longer exists"):
                await store.put(key, b"2", if_absent=True)
    assert not (tmp_path / "log" / "a").exists()
    await store.put("log/other/b/d", b"2")
    (tmp_path / "moved").rename(tmp_path / "log" / "a")
    await store.put("log/a/b/d", b"2", if_absent=True)
    assert await keys_of(store, "log/a") == ["log/a/b/c", "log/a/b/d"]


async def test_an_empty_folder_below_it_is_made_again(tmp_path: Path) -> None:
    """An empty folder that a user removed is created again by the second put."""
    store = LocalStore(tmp_path, clock=CLOCK)
    await store.put("log/a/b/c", b"1")
    await store.put("log/a/kept", b"1")
    shutil.rmtree(tmp_path / "log" / "a" / "b")

    with pytest.raises(LocationError) as failed:
        await store.put("log/a/b/c", b"2")
    assert failed.value.outcome is Outcome.NOT_APPLIED
    await store.put("log/a/b/c", b"2")
    assert (await store.get("log/a/b/c")).data == b"2"


async def test_a_put_makes_no_root(tmp_path: Path) -> None:
    """Only a caller that asks creates the root, which may be a disk that is not mounted."""
    store = LocalStore(tmp_path / "lake", clock=CLOCK)
    for key in ("a", "log/a/b"):
        with pytest.raises(StoreRefused, match="no longer exists") as refused:
            await store.put(key, b"1")
        assert refused.value.outcome is Outcome.NOT_APPLIED
    assert os.listdir(tmp_path) == []

    maker = LocalStore(tmp_path / "lake", clock=CLOCK, create=True)
    await maker.put("log/a/b", b"1")
    await store.put("a", b"1")
    assert await keys_of(store) == ["a", "log/a/b"]


async def test_a_store_that_only_reads_takes_another_directory(tmp_path: Path) -> None:
    """A store that only reads accepts a replaced directory, such as a source's new folder."""
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "a").write_bytes(b"1")
    store = LocalStore(lake, clock=CLOCK)
    await store.get("a")
    swap(lake)

    assert await keys_of(store) == []
    with pytest.raises(ObjectNotFound):
        await store.get("a")


async def test_a_root_on_another_device_is_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remount may change a root's device number, but not its inode and creation time."""
    store = LocalStore(tmp_path, clock=CLOCK)
    await store.put("a", b"1")
    if not local_files.identity_of(str(tmp_path)):
        pytest.skip("this file system has no time of creation")
    found = store._disk._root._found
    assert found is not None
    monkeypatch.setattr(store._disk._root, "_found", (found[0] + 1, found[1]))

    await store.put("a", b"2")
    monkeypatch.setattr(store._disk._root, "_birth", "another")
    with pytest.raises(StoreRefused, match="no longer exists"):
        await store.put("a", b"3")


async def test_a_lock_held_for_ever_is_reported(tmp_path: Path) -> None:
    """A stopped process with a lock becomes an error; a creation needs no lock."""
    store = LocalStore(tmp_path, clock=SwiftClock())

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


async def test_a_slow_write_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow write holds no lock, so that other writers need not wait for it."""
    store, other = (LocalStore(tmp_path, clock=SwiftClock()) for _ in range(2))
    e_tag = await store.put("head", b"old")
    write, theirs = local_files.write_temporary, list[str]()

    def write_and_stop(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(local_files, "write_temporary", write)
        written = write(*args, **options)
        theirs.append(asyncio.run(other.put("head", b"theirs", if_match=e_tag)))
        return written

    monkeypatch.setattr(local_files, "write_temporary", write_and_stop)
    with pytest.raises(ObjectChanged):
        await store.put("head", b"ours", if_match=e_tag)

    found = await store.get("head")
    assert [found.e_tag] == theirs
    assert list((tmp_path / ".tidelog" / "tmp").iterdir()) == []
    assert list((tmp_path / ".tidelog" / "locks").iterdir()) == []


async def test_a_file_that_changes_under_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and e-tag of a read are of one version; a file that keeps changing raises."""
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
    assert (await store.get("growing")).data == b"111"
    changes = 100
    with pytest.raises(LocationError, match="changing the file in place"):
        await store.get("growing")


class Syncs:
    """A wrapper of directory syncs. Some syncs of ``slots`` fail, and the others are recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: int) -> None:
        self.left = failing
        self.done: list[str] = []
        self._real = local_files.sync_directory
        monkeypatch.setattr(local_files, "sync_directory", self._sync)

    def _sync(self, path: str) -> None:
        if self.left and os.path.basename(path) == "slots":
            self.left -= 1
            raise OSError(errno.EIO, "no")
        self._real(path)
        self.done.append(os.path.basename(path))


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("how", ["create", "replace", "create_or_read"])
async def test_what_is_read_back_is_durable(
    how: str, failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put whose last sync failed is synced before its read-back counts."""
    clock = SwiftClock()
    store = LocalStore(tmp_path, clock=clock)
    e_tag = await store.put("slots/old", b"old")
    syncs = Syncs(monkeypatch, failing=failing)

    if how == "create":
        await conditional.create(store, "slots/k", b"ours", clock=clock)
    elif how == "replace":
        await conditional.replace(store, "slots/old", b"ours", e_tag=e_tag, clock=clock)
    else:
        assert await conditional.create_or_read(store, "slots/k", b"ours", clock=clock) == b"ours"

    assert syncs.left == 0
    assert "slots" in syncs.done


async def test_who_is_told_that_an_object_exists_can_build_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ObjectExists follows a sync: the creator may have died before its own."""
    one, other = (LocalStore(tmp_path, clock=CLOCK) for _ in range(2))
    await other.put("slots/first", b"1")
    syncs = Syncs(monkeypatch, failing=1)
    with pytest.raises(LocationError):
        await one.put("slots/k", b"theirs", if_absent=True)
    assert "slots" not in syncs.done

    with pytest.raises(ObjectExists):
        await other.put("slots/k", b"ours", if_absent=True)
    assert syncs.done.count("slots") == 1
    syncs.left = 1
    with pytest.raises(LocationError) as failed:
        await other.put("slots/k", b"ours", if_match="another")
    assert failed.value.outcome is Outcome.UNKNOWN


async def test_reading_costs_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read costs no sync, except once after a failed sync."""
    store = LocalStore(tmp_path, clock=CLOCK)
    await store.put("slots/k", b"1")
    syncs = Syncs(monkeypatch, failing=1)
    await store.get("slots/k")
    assert syncs.done == []

    with pytest.raises(LocationError):
        await store.put("slots/k", b"2")
    for _ in range(3):
        assert (await store.get("slots/k")).data == b"2"

    assert syncs.done == ["slots"]


async def test_a_deletion_that_may_not_last_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion whose sync fails raises LocationError with UNKNOWN."""
    store = LocalStore(tmp_path, clock=CLOCK)
    await store.put("slots/k", b"1")
    Syncs(monkeypatch, failing=1)

    with pytest.raises(LocationError) as failed:
        await store.delete(["slots/k"])
    assert failed.value.outcome is Outcome.UNKNOWN
