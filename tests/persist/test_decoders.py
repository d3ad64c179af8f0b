"""Row groups that several threads decode concurrently."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.persist.read.opened import Decoders

ROWS, GROUPS, THREADS = 1_024, 32, 4


class OneAtATime(pq.ParquetFile):
    """A reader that fails if two threads use it at once, as Arrow's reader sometimes does."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._busy = threading.Lock()

    def read_row_groups(self, *given: Any, **options: Any) -> pa.Table:
        assert self._busy.acquire(blocking=False), "two threads are in one reader"
        try:
            time.sleep(0.001)  # Gives the other threads a turn.
            return super().read_row_groups(*given, **options)
        finally:
            self._busy.release()


def test_threads_decode_of_one_file_at_once() -> None:
    """Each thread gets the rows that it asks for, from a reader that no other thread uses."""
    numbers = np.arange(ROWS * GROUPS)
    table = pa.table({"n": numbers, "text": [f"{n} is here" for n in numbers]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=ROWS)
    data = sink.getvalue()
    made: list[int] = []

    def another() -> pq.ParquetFile:
        made.append(1)
        return OneAtATime(pa.BufferReader(data))

    decoders = Decoders(another(), another)
    groups = [number % GROUPS for number in range(4 * GROUPS)]
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda n: decoders.read([n], ["text", "n"]), groups))
    for group, rows in zip(groups, found, strict=True):
        assert rows.equals(table.slice(group * ROWS, ROWS).select(rows.column_names))
    assert 1 <= len(made) <= THREADS, "readers are used again"
