"""How fast json lines become a definite collection, beside the least that any tool must do.

The baseline reads the same file with Arrow's json reader and writes it as Parquet (zstd, page
checksums) on one core: no errors kept apart, no checksums of the source, no commit. Each side runs
in turn, and the ratio is the median over the pairs.

    python bench/ingest.py [rows] [pairs]
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.json as pj
import pyarrow.parquet as pq

from tidelog.aio import SourceSpec, connect


def write_rows(path: Path, rows: int) -> None:
    """Write rows of 8 fields, about 150 bytes each, in time order."""
    rng = random.Random(0)
    with path.open("w") as file:
        for number in range(rows):
            row = {
                "id": number,
                "user": f"user-{rng.randrange(rows // 10)}",
                "at": 1_700_000_000_000 + number,
                "kind": rng.choice("abc"),
                "amount": round(rng.random() * 100, 2),
                "ok": True,
                "day": f"2024-01-{1 + number % 28:02d}",
                "note": "x" * 20,
            }
            file.write(json.dumps(row) + "\n")


def baseline(path: Path, folder: Path) -> float:
    """Read and write with Arrow alone; give seconds."""
    start = time.perf_counter()
    table = pj.read_json(path, read_options=pj.ReadOptions(use_threads=False))
    pq.write_table(table, folder / "baseline.parquet", compression="zstd", write_page_checksum=True)
    return time.perf_counter() - start


async def ingest(folder: Path, spec: SourceSpec) -> tuple[float, int]:
    """Ingest with the local engine into a new location; give seconds and store requests."""
    location = await connect((folder / "lake").as_uri(), create=True)
    await location.create_source(spec)
    ingester = await location.ingester(spec.name)
    before = location.store.usage()
    start = time.perf_counter()
    head = await ingester.source.head()
    while (tick := await ingester.tick(head)) is not None and tick.left_bytes:
        pass
    seconds = time.perf_counter() - start
    return seconds, (location.store.usage() - before).requests_count


def specs(path: Path) -> dict[str, SourceSpec]:
    """Give the kinds of ingestion that are measured."""
    files = str(path)
    return {
        "append, clock times": SourceSpec(name="a", files=files),
        "append, data times": SourceSpec(name="a", files=files, time_column="at"),
        "upsert, data times": SourceSpec(
            name="a", files=files, time_column="at", envelope="upsert", key=("user",)
        ),
    }


def measure(run: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        return run(Path(folder))


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as given:
        path = Path(given) / "rows.jsonl"
        write_rows(path, rows)
        print(f"{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB of json, medians of {pairs}")
        for name, spec in specs(path).items():
            ours, theirs, requests = [], [], 0
            for _ in range(pairs):
                theirs.append(measure(lambda folder: baseline(path, folder)))
                with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
                    seconds, requests = asyncio.run(ingest(Path(folder), spec))
                    ours.append(seconds)
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            speed = rows / statistics.median(ours)
            print(
                f"{name:22s} {speed:10,.0f} rows/s  {requests:4d} requests  "
                f"{ratio:.1f} x the baseline's {rows / statistics.median(theirs):,.0f} rows/s"
            )


if __name__ == "__main__":
    main()
