"""Row groups that several threads decode concurrently."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.persist.read.opened import Decoders

ROWS, GROUPS, THREADS = 1_024, 32, 4


class OneAtATime(pq.ParquetFile):
    """A reader that fails if two threads use it at once; a read waits for all threads."""

    def __init__(self, all_read: threading.Barrier, *given: Any) -> None:
        super().__init__(*given)
        self._all_read = all_read
        self._busy = threading.Lock()

    def read_row_groups(self, *given: Any, **options: Any) -> pa.Table:
        assert self._busy.acquire(blocking=False), "two threads are in one reader"
        try:
            self._all_read.wait(30)
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
    all_read = threading.Barrier(THREADS)

    def another() -> pq.ParquetFile:
        made.append(1)
        return OneAtATime(all_read, pa.BufferReader(data))

    decoders = Decoders(another(), another)
    groups = [number % GROUPS for number in range(4 * GROUPS)]
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda n: decoders.read([n], ["text", "n"]), groups))
    for group, rows in zip(groups, found, strict=True):
        assert rows.equals(table.slice(group * ROWS, ROWS).select(rows.column_names))
    assert len(made) == THREADS, "readers are used again"
