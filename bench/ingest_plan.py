"""The cost of planning a tick: seconds, processor time and bytes read, by size and by files.

Files on a disk are surveyed, here by threads of this process. On a cluster, tasks share this work.
Objects in the cloud are bound by their listing. The listing of a disk replaces it here.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from figures import print_table
from tidelog.aio import SourceSpec, connect
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.source.files import FilesSource

LINE = b'{"id": %10d, "at": %d, "note": "' + b"x" * 80 + b'"}\n'
FIRST = 1_700_000_000_000
FILE_BYTES = 64 * 1024 * 1024
FILES = (100, 10_000)
RUNS = (10, 100, 1_000)
T = TypeVar("T")


@dataclass(slots=True)
class Took:
    """The cost of a step: seconds of wall time and of processor time."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    async def of(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and add its time."""
        start, cpu = time.perf_counter(), time.process_time()
        done = await work()
        self.seconds, self.cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        return done


def write_bytes(folder: Path, size_bytes: int) -> None:
    """Write ``size_bytes`` of lines, in time order, in files of 64 MiB."""
    count, files = 0, -(-size_bytes // FILE_BYTES)
    lines = size_bytes // files // len(LINE % (0, FIRST))
    for number in range(files):
        with (folder / f"{number:06}.json").open("wb") as file:
            file.writelines(LINE % (n, FIRST + n) for n in range(count, count + lines))
            count += lines


def write_files(folder: Path, files: int) -> None:
    """Write ``files`` files of one line."""
    for number in range(files):
        (folder / f"{number:06}.json").write_bytes(LINE % (number, FIRST + number))


async def ingester_at(root: Path, *, timed: bool) -> Ingester:
    """Return an ingester of the files in ``root / "in"``, into a location of its own."""
    name = f"by{int(timed)}"
    location = await connect((root / "lake").as_uri(), create=True)
    await location.sources.create(
        SourceSpec(
            name=name,
            files=f"{root}/in/*.json",
            schema="id bigint, at bigint, note varchar",
            time_column="at" if timed else None,
        )
    )
    return await location.sources.ingester(name)


async def plan_all(root: Path, what: str) -> list[list[str]]:
    """Plan one tick of all files, with each kind of proof and of times."""
    rows = []
    for proof, timed in (("version", False), ("sums", False), ("sums", True)):
        with tempfile.TemporaryDirectory(dir=root, prefix="lake-") as place:
            (Path(place) / "in").symlink_to(root / "in")
            ingester = await ingester_at(Path(place), timed=timed)
            source = ingester.source
            assert isinstance(source, FilesSource)
            source.is_versioned = proof == "version"
            source.kept_bytes_max = 0
            ingester.bytes_max = 1 << 50
            listing, planning = Took(), Took()
            head = await listing.of(source.head)
            before = source.usage().read_bytes
            plan = await planning.of(partial(ingester.plan, head, 0))
            read = source.usage().read_bytes - before
        assert plan is not None
        rows.append(
            [
                what,
                proof,
                "data" if timed else "clock",
                str(len(plan.ranges)),
                f"{listing.seconds:.2f}",
                f"{planning.seconds:.2f}",
                f"{planning.cpu_seconds:.2f}",
                f"{read / 1e6:.1f}",
            ]
        )
    return rows


async def restarts(root: Path, runs: int) -> list[str]:
    """Return the requests of a run without new files, after ``runs`` runs with one file each."""
    ingester = await ingester_at(root, timed=False)
    for number in range(runs):
        (root / "in" / f"{number:06}.json").write_bytes(LINE % (number, FIRST + number))
        await ingester.tick(await ingester.source.head())
    location = await connect((root / "lake").as_uri())
    took = Took()
    again = await location.sources.ingester(ingester.info.name)
    summary = await took.of(
        lambda: run_ingest(
            again, follow=False, interval_us=0, on_tick=lambda _: None, stop=lambda: False
        )
    )
    asked = summary.store
    return [str(runs), str(asked.get_count), str(asked.requests_count), f"{took.seconds:.2f}"]


def measure_plans(gigabytes: list[float], files: list[int], runs: list[int]) -> None:
    """Print the cost of planning, and the requests of a restart."""
    table = []
    for size in gigabytes:
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
            root = Path(folder)
            (root / "in").mkdir()
            write_bytes(root / "in", int(size * 1e9))
            table += asyncio.run(plan_all(root, f"{size:g} GB"))
    for count in files:
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
            root = Path(folder)
            (root / "in").mkdir()
            write_files(root / "in", count)
            table += asyncio.run(plan_all(root, f"{count:,} files"))
    head = [
        "input",
        "proof",
        "times",
        "ranges",
        "listing s",
        "planning s",
        "processor s",
        "MB read",
    ]
    print_table(head, table)
    print()
    told = []
    for count in runs:
        with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
            (Path(folder) / "in").mkdir()
            told.append(asyncio.run(restarts(Path(folder), count)))
    print_table(["runs before", "reads of a restart", "requests", "seconds"], told)
