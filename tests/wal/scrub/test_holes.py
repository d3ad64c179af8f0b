"""Sparse files in a local directory: readers report them and never load them into memory."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.clocks import OneThread
from tidelog.errors import CorruptionError
from tidelog.store.urls import open_store
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log, open_log
from tidelog.wal.slot_protocol.shape import Shape

HUGE = 2**40

OF_ROLES: dict[str, Callable[[Path], Path]] = {
    "manifest": lambda log: log / MANIFEST,
    "object": lambda log: sorted(log.glob("epoch/*/*/*.parquet"))[2],
}


async def opened(folder: Path) -> Log:
    store = open_store(folder.as_uri(), clock=OneThread())
    return await open_log(store, name="log", clock=OneThread(), writer="looker")


async def read_all(folder: Path) -> None:
    async for _ in (await opened(folder)).scan():
        pass


async def written(folder: Path) -> None:
    store = open_store(folder.as_uri(), clock=OneThread(), create=True)
    shape = Shape(alpha=1)
    log = await create_log(store, name="log", clock=OneThread(), writer="writer", shape=shape)
    for _ in range(4):
        await log.append([b"body"])
    await log.close()


@pytest.mark.parametrize("role", OF_ROLES)
async def test_a_file_of_holes_is_told(role: str, tmp_path: Path) -> None:
    """A read of a sparse file that exceeds the memory raises CorruptionError."""
    await written(tmp_path)
    os.truncate(OF_ROLES[role](tmp_path), HUGE)

    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match="holes"):
            await read_all(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


async def test_a_scrub_goes_on_past_a_file_of_holes(tmp_path: Path) -> None:
    """A scrub reports a sparse file and checks the rest of the log."""
    await written(tmp_path)
    path = OF_ROLES["object"](tmp_path)
    os.truncate(path, HUGE)

    found = await (await opened(tmp_path)).scrub()

    key = path.relative_to(tmp_path).as_posix()
    assert [problem.path for problem in found.problems] == [key]
    assert "holes" in found.problems[0].why
    assert found.records == 3


@pytest.mark.parametrize("size", [2**20, 2**26, 2**28])
async def test_a_file_that_was_written_is_read(size: int, tmp_path: Path) -> None:
    """A file of written zeros is read at any size, because it has no holes."""
    (tmp_path / "zeros").write_bytes(bytes(size))
    store = open_store(tmp_path.as_uri(), clock=OneThread())

    assert len((await store.get("zeros")).data) == size
