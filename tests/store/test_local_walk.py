"""Listings of a directory tree: in key order, with as few directory reads as possible."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from tidelog.core.clock import SystemClock
from tidelog.errors import LocationError, ObjectNotFound, TidelogError
from tidelog.store.local.store import LocalStore

CLOCK = SystemClock()


async def keys_of(store: LocalStore, prefix: str = "", after: str | None = None) -> list[str]:
    return [entry.key async for entry in store.list(prefix, after=after)]


async def test_links_are_followed_but_not_for_ever(tmp_path: Path) -> None:
    """Links are followed, but a listing ends if they form a ring."""
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

    assert await keys_of(store) == ["a/y", "file", "linked/x"]
    assert (await store.get("linked/x")).data == b"1"
    with pytest.raises(ObjectNotFound):
        await store.get("pipe")
    with pytest.raises(TidelogError):
        await store.get("a/self")


async def test_listing_reads_only_directories_that_can_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower of a log must not open old directories."""
    store = LocalStore(tmp_path, clock=CLOCK)
    opened: list[str] = []
    scan = os.scandir

    def remember(path: str) -> object:
        opened.append(os.path.relpath(path, tmp_path))
        return scan(path)

    for number in range(5):
        await store.put(f"log/b{number}/f", b"")
    await store.put("other/f", b"")
    monkeypatch.setattr("tidelog.store.local.store.os.scandir", remember)
    assert await keys_of(store, "log/", after="log/b3/e") == ["log/b3/f", "log/b4/f"]
    assert opened == ["log", "log/b3", "log/b4"]


async def test_what_vanishes_while_listing_is_left_out(tmp_path: Path) -> None:
    """A listing leaves out files that are deleted during it."""
    store = LocalStore(tmp_path, clock=CLOCK)

    await asyncio.gather(*(store.put(f"d{n % 2}/{n:03}", b"") for n in range(100)))
    seen = []
    async for entry in store.list(""):
        seen.append(entry.key)
        if len(seen) == 1:
            for number in range(50, 100):
                (tmp_path / f"d{number % 2}" / f"{number:03}").unlink()
            (tmp_path / "d1").rename(tmp_path / ".tidelog" / "away")
    assert seen[0] == "d0/000"
    assert seen == sorted(seen)
    assert len(seen) <= 50


async def test_a_directory_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that cannot be read raises LocationError. To leave it out would hide objects."""

    def refuse(path: str) -> object:
        raise PermissionError(errno.EACCES, "denied", path)

    monkeypatch.setattr("tidelog.store.local.store.os.scandir", refuse)
    with pytest.raises(LocationError, match="denies access"):
        await keys_of(LocalStore(tmp_path, clock=CLOCK))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
async def test_a_file_that_cannot_be_looked_at_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A pin that a listing skips would hold nothing, so an unreadable status raises."""
    (tmp_path / "pin").mkdir()
    (tmp_path / "pin" / "p").write_bytes(b"1")
    store = LocalStore(tmp_path, clock=CLOCK)
    real = os.stat

    def fail(path: str, **options: object) -> os.stat_result:
        if str(path).endswith("pin/p"):
            raise OSError(code, os.strerror(code))
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", fail)

    with pytest.raises(LocationError):
        await keys_of(store)
