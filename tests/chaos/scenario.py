"""A difficult source, its replay in plain Python, and rows for the comparison.

It has many changes of few keys, several at one time and in one tick, deletes of missing keys, and
lines that are not rows. The replay is a dict, and shares no code with the ingester.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MINUTE_MS = 60_000
START_MS = 1_700_000_000_000 - 1_700_000_000_000 % MINUTE_MS

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The written events and their counts."""

    events: list[dict[str, Any]]
    bad_lines: int
    size_bytes: int

    @property
    def minutes(self) -> list[int]:
        """Return the end of each minute that has events."""
        first, last = self.events[0]["at"], self.events[-1]["at"]
        return [*range(first, last, MINUTE_MS), last]


def write_scenario(folder: Path, *, events_count: int, seed: int, files: int = 6) -> Scenario:
    """Write files of JSON lines in time order; several events share a time, many a key."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    events: list[dict[str, Any]] = []
    at = START_MS
    while len(events) < events_count:
        # A burst: up to 5 events at one time, mostly of a single key.
        one = rng.randrange(40) if rng.random() < 0.66 else None
        for _ in range(rng.randint(1, 5)):
            key = rng.randrange(40) if one is None else one
            what = rng.choices(["set", "gone"], weights=[4, 1])[0]
            events.append(
                {
                    "at": at,
                    "key": f"k{key:02d}",
                    "part": key % 3,
                    "event": what,
                    "value": rng.choice([None, rng.randrange(1000)]),
                    "note": "n" * rng.randrange(20),
                }
            )
        at += rng.choice([1, 40, 900, 12_000])
    bad_lines = size = 0
    share = -(-len(events) // files)
    for number in range(files):
        lines = [json.dumps(e) for e in events[number * share : (number + 1) * share]]
        lines.insert(rng.randrange(len(lines) + 1), '{"at": "not a row"')
        bad_lines += 1
        data = "\n".join(lines) + "\n"
        size += len(data)
        (folder / f"{number:03d}.jsonl").write_text(data)
    return Scenario(events, bad_lines, size)


def replay(scenario: Scenario, times: list[int]) -> list[Counter[Row]]:
    """Return the contents at each time, by a dict from key to newest row."""
    held: dict[tuple[str, int], Row] = {}
    found: list[Counter[Row]] = []
    events = iter(scenario.events)
    event = next(events, None)
    for time in times:
        while event is not None and event["at"] <= time:
            key = (event["key"], event["part"])
            if event["event"] == "gone":
                held.pop(key, None)
            else:
                held[key] = row_of(event)
            event = next(events, None)
        found.append(Counter(held.values()))
    return found


def row_of(row: dict[str, Any]) -> Row:
    return tuple(row[name] for name in ("at", "key", "part", "event", "value", "note"))
