"""The cost of opening and reading a collection of the demo's size, by its number of ticks.

As many rows as the demo's flights arrive in 20 ticks, and in 10,000. All history is kept. Merges
run as with `ingest --follow`. Then a new handle opens the shard and reads it as of now; the figures
are medians of five. The store is in memory and counts requests.

    python bench/many_ticks.py [--rows N] [--ticks N N]
"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np
import pyarrow as pa

from figures import print_table
from year import SCHEMA, Figures, Year

AIM = 2.0


class Growing(Year):
    """A shard to which each tick adds rows of new keys."""

    def replaced(self, moment: int) -> pa.Table:
        """Return the updates of a tick, which only add rows."""
        start = self.clock.ticks * self.rows
        keys = np.arange(start, start + self.rows)
        self.newest[keys] = moment
        numbers = [keys, np.full(self.rows, moment), np.full(self.rows, moment)]
        columns = [*numbers, np.ones(self.rows, np.int64)]
        names = SCHEMA.updates.names
        return pa.table([pa.array(c, pa.int64()) for c in columns], names).cast(SCHEMA.updates)


async def grown(rows: int, ticks: int) -> Figures:
    """Return the figures of a new handle after ``ticks`` ticks."""
    year = Growing(rows // ticks, rows, None)
    for _ in range(ticks):
        await year.tick()
    found = [await year.measured() for _ in range(5)]
    return sorted(found, key=lambda one: one.read_ms)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=336_776)
    parser.add_argument("--ticks", type=int, nargs=2, default=[20, 10_000])
    given = parser.parse_args()
    lines, first = [], None
    for ticks in given.ticks:
        found = asyncio.run(grown(given.rows, ticks))
        requests = found.open_requests + found.read_requests
        milliseconds = found.open_ms + found.read_ms
        first = first or (requests, milliseconds)
        lines.append(
            [
                f"{ticks:,}",
                f"{found.batches:.0f}",
                f"{requests:.0f}",
                f"{milliseconds:.1f}",
                f"{requests / first[0]:.2f}",
                f"{milliseconds / first[1]:.2f}",
                f"{AIM}",
            ]
        )
    head = ["ticks", "batches", "requests", "ms", "times the requests", "times as long", "aim"]
    print_table(head, lines)


if __name__ == "__main__":
    main()
