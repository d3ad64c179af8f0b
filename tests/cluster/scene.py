"""A source in a bucket, large enough to cut every stage into tasks, and its replay.

The replay is a dict from key to newest row: it shares no code with the ingestion.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.store.urls import open_store

NAME: Final = "events"
SCHEMA: Final = "at bigint, key varchar, gone boolean, value bigint, note varchar"
KEYS: Final = 3_000
NOTE_BYTES: Final = 1_500  # A row costs by its columns, a file by its bytes: few rows, wide ones.
START_MS: Final = 1_700_000_000_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """The size of the written files, and the expected rows."""

    size_bytes: int
    rows: int
    bad_lines: int
    contents: dict[str, Row]


async def write_scene(url: str, *, size_bytes: int, files: int, seed: int) -> Scene:
    """Write json lines in the order of time to a bucket, with a bad line in each file."""
    store = open_store(url, clock=SystemClock())
    contents: dict[str, Row] = {}
    total = rows = 0
    made = _rows(seed)
    for number in range(files):
        lines = ['{"at": "not a row"']
        size = 0
        while size < size_bytes // files:
            row = next(made)
            lines.append(json.dumps(row))
            size += len(lines[-1]) + 1
            rows += 1
            if row["gone"]:
                contents.pop(row["key"], None)
            else:
                contents[row["key"]] = row
        data = "".join(f"{line}\n" for line in lines).encode()
        total += len(data)
        await store.put(f"{number:03d}.jsonl", data)
    return Scene(total, rows, files, contents)


def spec_of(files_url: str, *, name: str = NAME) -> SourceSpec:
    """Return the source of a scene's files."""
    return SourceSpec(
        name=name,
        files=files_url,
        format="json",
        envelope="upsert",
        key=("key",),
        time_column="at",
        delete_when="gone",
        schema=SCHEMA,
        shards=2,
    )


def write_few(folder: Path, count: int) -> list[Row]:
    """Write a small file of rows with different keys; return the rows."""
    folder.mkdir(parents=True)
    rows = [
        {"at": START_MS + n, "key": f"k{n}", "gone": False, "value": n, "note": ""}
        for n in range(count)
    ]
    (folder / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def _rows(seed: int) -> Iterator[Row]:
    rng = random.Random(seed)
    filling = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=2 * NOTE_BYTES))
    at = START_MS
    while True:
        at += rng.choice([0, 1, 40, 900])
        start = rng.randrange(NOTE_BYTES)
        yield {
            "at": at,
            "key": f"k{rng.randrange(KEYS):05d}",
            "gone": rng.random() < 0.1,
            "value": rng.randrange(10**6),
            "note": filling[start : start + NOTE_BYTES],
        }
