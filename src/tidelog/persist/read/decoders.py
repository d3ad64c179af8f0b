"""Readers of one file's row groups: as many as threads that decode of it at once.

Arrow's reader of a file is one thread's at a time, and takes a tenth of a millisecond to make.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

Opener = Callable[[], pq.ParquetFile]


class Decoders:
    """Decodes row groups of one file, in any thread."""

    def __init__(self, first: pq.ParquetFile, another: Opener) -> None:
        self._idle = deque([first])
        self._another = another

    def read(
        self, groups: Sequence[int], columns: Sequence[str], *, use_threads: bool = False
    ) -> pa.Table:
        """Return columns of row groups, decoded by the calling thread, or by Arrow's as well.

        Raises:
            whatever Arrow raises of a file that it cannot decode.
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
