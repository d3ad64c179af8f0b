"""Full disks: a write that fails reports its outcome, and no acknowledged write is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.places import open_place
from kit.shards import contents

SCRIPT = Path(__file__).with_name("full_disk.py")


@pytest.fixture(params=["fill", "limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Return a small disk in memory if one can be mounted, or a limit on file sizes."""
    how, folder = str(request.param), tmp_path / "disk"
    folder.mkdir()
    if how == "limit":
        yield how, folder
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here; the bound on the size of files stands for it")
    yield how, folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("kind", ["store on local", "sqlite"])
def test_a_disk_that_is_full_is_told_and_loses_nothing(
    kind: str, disk: tuple[str, Path], request: pytest.FixtureRequest
) -> None:
    """Each write that failed on a full disk exists once after its repetition."""
    how, folder = disk
    for place, where in open_place(kind, request, folder):
        assert where is not None
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *where.arguments, how],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=200,
        )
        told = [(int(time), what) for time, what in map(str.split, done.stdout.splitlines())]
        assert [time for time, what in told if what in ("committed", "already")] == [*range(9)]
        failed = [time for time, what in told if what in ("never", "unsure")]
        assert failed, "the disk was never full"
        found = asyncio.run(contents(place.shard(), 8))
        assert sorted((row[1], count) for row, count in found.items()) == [
            (time, 1) for time in range(9)
        ]
        asyncio.run(place.shard().compact(full=True))
        assert asyncio.run(contents(place.shard(), 8)) == found
