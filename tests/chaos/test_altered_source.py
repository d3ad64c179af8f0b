"""Sources that take new columns, and are altered, while real processes ingest them and are killed.

The model is the rows of the files: each value of each row must be in the collection.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

from chaos.ingesters import NAME, start_ingest
from kit.sources import make_source, table_of
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location

FILES = 40
ROUNDS = 4


def test_no_value_is_lost_while_columns_come_and_ingesters_die(tmp_path: Path) -> None:
    """Two ingesters meet new fields at once, and another process alters the source."""
    dice, url = random.Random(9), str(tmp_path / "lake")
    files = tmp_path / "in"
    files.mkdir()
    spec = SourceSpec(
        name=NAME,
        files=str(files),
        schema="n bigint",
        envelope="upsert",
        key=("n",),
        shards=2,
        evolve=True,
    )
    asyncio.run(make_source(url, spec))
    written: dict[int, dict[str, int]] = {}
    for turn in range(ROUNDS):
        for _ in range(FILES // ROUNDS):
            add_file(files, written, dice)
        running = [start_ingest(url, engine="local", tick_bytes=300) for _ in range(2)]
        asyncio.run(alter(url, f"m{turn}"))
        running[0].wait_for_tick()
        time.sleep(dice.uniform(0, 0.5))
        for one in running:
            one.kill()
    start_ingest(url, engine="local", tick_bytes=300).finish()

    assert asyncio.run(contents(url)) == written
    assert len({name for row in written.values() for name in row}) > 10


def add_file(files: Path, written: dict[int, dict[str, int]], dice: random.Random) -> None:
    """Write a file of some rows, most of them with a field of few or no rows before."""
    rows = []
    for n in range(len(written), len(written) + 10):
        written[n] = {f"f{dice.randrange(n // 20 + 1)}": n} if dice.random() < 0.7 else {}
        rows.append({"n": n, **written[n]})
    hidden = files / "_next"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(files / f"{len(written):06d}.jsonl")


async def alter(url: str, name: str) -> None:
    location = await open_location(url)
    await location.sources.alter(NAME, add=f"{name} bigint")


async def contents(url: str) -> dict[int, dict[str, Any]]:
    found = await table_of(await open_location(url), NAME)
    rows = found.drop_columns(["_diff"]).to_pylist()
    return {
        row["n"]: {name: value for name, value in row.items() if name != "n" and value is not None}
        for row in rows
    }
