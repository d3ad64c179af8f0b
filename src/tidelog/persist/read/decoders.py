"""Decoders of the row groups of one file, one per concurrent thread.

Only one thread at a time may use Arrow's reader of a file. Creating a reader takes 0.1 ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

Opener = Callable[[], pq.ParquetFile]


class Decoders:
    """Decodes row groups of one file, on any thread."""

    def __init__(self, first: pq.ParquetFile, another: Opener) -> None:
        self._idle = deque([first])
        self._another = another

    def read(
        self, groups: Sequence[int], columns: Sequence[str], *, use_threads: bool = False
    ) -> pa.Table:
        """Return columns of row groups; with ``use_threads``, Arrow's threads decode them too.

        Raises:
            the errors of Arrow for a file that it cannot decode.
        """
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._another()
        try:
            return file.read_row_groups(
                list(groups), columns=list(columns), use_threads=use_threads
            )
        finally:
            self._idle.append(file)
