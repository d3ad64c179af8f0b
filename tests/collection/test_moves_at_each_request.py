"""Tools that move logs during a run, at many of its requests in turn: each row is in once."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kit.clocks import OneThread
from kit.sources import run_once
from schedules.process import ProcessKilled, WatchedStore
from tidelog.collection.source.files import FilesSource
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore

STEP = 5  # A step of 1 would test every request, and take four minutes.


@dataclass(slots=True)
class Logs:
    """A folder of logs, and all numbers written into them."""

    folder: Path
    written: list[int] = field(default_factory=list)
    _date: int = 1_700_000_000

    def write(self, name: str, *numbers: int) -> None:
        with (self.folder / name).open("a") as file:
            file.writelines(json.dumps({"n": n}) + "\n" for n in numbers)
        self.written += numbers
        self.date(name)

    def date(self, name: str) -> None:
        self._date += 1
        os.utime(self.folder / name, (self._date, self._date))

    def rename(self, old: str, new: str) -> None:
        if (self.folder / old).exists():
            (self.folder / old).rename(self.folder / new)


def rotate(logs: Logs) -> None:
    """Rotate twice. Each log starts with the same record, and has the same size."""
    for number in (70, 80):
        logs.rename("app.log.2", "app.log.3")
        logs.rename("app.log.1", "app.log.2")
        logs.rename("app.log", "app.log.1")
        logs.write("app.log", 0, number, number + 1, number + 2, number + 3)
    logs.write("app.log.2", 60)


def rotate_at_once(logs: Logs) -> None:
    """Rotate within one tick of the disk's clock: both logs have one size and date."""
    dated = (logs.folder / "app.log").stat()
    rotate(logs)
    for name in ("app.log", "app.log.1"):
        os.utime(logs.folder / name, ns=(dated.st_mtime_ns, dated.st_mtime_ns))
    logs.write("app.log.1", 61)


def rotate_by_date(logs: Logs) -> None:
    logs.rename("app.log", "app.log-20261126")
    logs.write("app.log", 0, 70, 71, 72)
    logs.write("app.log-20261126", 60)


def rotate_and_compress(logs: Logs) -> None:
    """Rotate, and compress a former log with its date."""
    rotate(logs)
    path = logs.folder / "app.log.2"
    dated = path.stat().st_mtime
    packed = path.with_name("app.log.2.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    os.utime(packed, (dated, dated))
    path.unlink()


def copy_and_truncate(logs: Logs) -> None:
    logs.rename("app.log.1", "app.log.2")
    shutil.copy(logs.folder / "app.log", logs.folder / "app.log.1")
    logs.date("app.log.1")
    os.truncate(logs.folder / "app.log", 0)
    logs.write("app.log", 70, 71, 72, 73, 74, 75, 76)


def save_by_rename(logs: Logs) -> None:
    """Write a longer copy under another name and rename it, as editors and rsync do."""
    shutil.copy(logs.folder / "app.log", logs.folder / ".app.log.a1B2c3")
    logs.rename(".app.log.a1B2c3", "app.log")
    logs.write("app.log", 70)


def write_in_place(logs: Logs) -> None:
    """Write a log again with more records, as rsync does with --inplace."""
    data = (logs.folder / "app.log").read_bytes()
    (logs.folder / "app.log").write_bytes(data)
    logs.write("app.log", 70)


def rename_when_written(logs: Logs) -> None:
    """Write files under Hadoop's temporary names, and rename them."""
    for hidden, name in (("_temporary", "part-0.log"), ("", "part-1.log")):
        (logs.folder / hidden).mkdir(exist_ok=True)
        path = f"{hidden}/{name}" if hidden else f"{name}._COPYING_"
        logs.write(path, 0, 70)
        logs.rename(path, name)


@dataclass(slots=True)
class Run:
    """A run of a process, with ``act`` at one request, and possibly a kill there."""

    store: MemoryStore
    act: Callable[[], None]
    at: int
    is_killed: bool
    requests: int = 0
    notes: set[str] = field(default_factory=set)

    def watch(self) -> None:
        self.requests += 1
        if self.requests == self.at:
            self.act()
        if self.is_killed and self.requests >= self.at:
            raise ProcessKilled

    async def go(self) -> None:
        store = WatchedStore(self.store, self.watch)
        try:
            location = await open_location("memory://", clock=OneThread(), store=store)
            ingester = await location.sources.ingester("c", bytes_max=70)
            assert isinstance(ingester.source, FilesSource)
            ingester.source.store = WatchedStore(ingester.source.store, self.watch)
            self.notes = {*(await run_once(ingester)).notes}
        except ProcessKilled:
            pass
        except BaseExceptionGroup as error:
            if error.split(ProcessKilled)[0] is None:
                raise


async def play(folder: Path, tool: Callable[[Logs], None], at: int, *, is_killed: bool) -> Run:
    """Run a tool at one request of a run, compare the rows, and return the run."""
    logs = Logs(folder / "in")
    logs.folder.mkdir(parents=True)
    logs.write("app.log.1", 0, 1, 2, 3)
    logs.write("app.log", 0, 10, 11, 12)
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=OneThread(), store=store)
    spec = SourceSpec(name="c", files=str(logs.folder), schema="n bigint")
    await location.sources.create(spec)
    await run_once(await location.sources.ingester("c"))
    logs.write("app.log.1", 4)
    logs.write("app.log", 13)
    run = Run(store, lambda: tool(logs), at, is_killed)
    await run.go()
    last = [await run_once(await location.sources.ingester("c", final=True)) for _ in range(2)]
    found: Counter[int] = Counter()
    for row in (await (await location.collection("c")).consolidated()).to_pylist():
        found[row["n"]] += row["_diff"]
    missing, more = Counter(logs.written) - found, found - Counter(logs.written)
    is_told = any(run.notes) or any(summary.notes for summary in last)
    if tool not in (copy_and_truncate, save_by_rename) or not is_told:
        assert not missing, f"at request {at}: {missing} missing, {more} more"
        assert not more, f"at request {at}: {more} more"
    assert not last[-1].waiting
    return run


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(
    "tool",
    [
        rotate,
        rotate_at_once,
        rotate_by_date,
        rotate_and_compress,
        copy_and_truncate,
        save_by_rename,
        write_in_place,
        rename_when_written,
    ],
)
async def test_a_tool_may_work_at_any_request_of_a_run(
    tmp_path: Path, tool: Callable[[Logs], None], is_killed: bool
) -> None:
    """A listing is older than the reads after it, so only identities distinguish files."""
    at = 1
    while True:
        run = await play(tmp_path / str(at), tool, at, is_killed=is_killed)
        if run.requests < at:
            break
        at += STEP
