"""Replicas of one source as real processes, some of them with another program."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from chaos.ingesters import NAME, Ingest, start_ingest
from kit.sources import make_source, table_of, write_numbers
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location

ROUNDS = 4
FILES = 6
# A process that finds this module on its path loses the first row of each range.
FAULTY = """
from tidelog.collection.ingest import compute

whole = compute.stamp_rows
compute.stamp_rows = lambda rows, *args, **options: whole(rows.slice(1), *args, **options)
"""


def test_replicas_serve_no_row_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two good ingesters are stopped and killed, so a faulty one is often the first, or alone."""
    dice, url = random.Random(27), str(tmp_path / "lake")
    faulty = tmp_path / "faulty"
    faulty.mkdir()
    (faulty / "sitecustomize.py").write_text(FAULTY)
    files = tmp_path / "in"
    files.mkdir()
    asyncio.run(make_source(url, SourceSpec(name=NAME, files=str(files), shards=2, schema="n int")))

    def start(*, good: bool) -> Ingest:
        with monkeypatch.context() as patch:
            if not good:
                patch.setenv("PYTHONPATH", str(faulty))
            return start_ingest(url, engine="local", tick_bytes=60)

    for turn in range(ROUNDS):
        for number in range(turn * FILES, (turn + 1) * FILES):
            write_numbers(files / f"{number:04d}.jsonl", number * 2, number * 2 + 1)
        if turn % 2:
            refused(start(good=False))
        starts = [True, True, False]
        dice.shuffle(starts)
        running = [(good, start(good=good)) for good in starts]
        for good, one in running:
            if good:
                one.wait_for_tick()
                one.hold(held=dice.random() < 0.5)
            else:  # The others may have left it nothing to compute.
                assert one.wait(300) in (0, 2), one.said
                assert sum(tick["rows"] for tick in one.ticks) == 0
        time.sleep(dice.uniform(0, 0.3))
        for _, one in running:
            one.kill()
    start(good=True).finish()

    rows = asyncio.run(contents(url))
    assert rows == list(range(2 * ROUNDS * FILES))


def refused(one: Ingest) -> None:
    """Check that an ingester which comes alone is refused with the way on."""
    assert one.wait(300) == 2, one.said
    said = "".join(one.said)
    assert "this process would decide other rows" in said
    assert "tidelog rendition create" in said
    assert sum(tick["rows"] for tick in one.ticks) == 0  # It may finish a binding without rows.


async def contents(url: str) -> list[int]:
    """Return the numbers in the collection, with repetitions."""
    found = await table_of(await open_location(url), NAME)
    assert set(found.column("_diff").to_pylist()) == {1}
    return sorted(int(row["n"]) for row in found.to_pylist())
