"""What the same bytes were read as, remembered for a run: a third of its time was doing so again.

Reading columns out of bytes is pure, so that what comes of them is the same each time, and what is
read is never changed in place. It is forgotten with the run: a broken build is one for whole runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import pyarrow as pa

from tidelog.wal.format.parquet import RecordFile


@contextmanager
def reading_once() -> Iterator[None]:
    """Let records be read once out of the same bytes, inside of the block."""
    found: dict[tuple[bytes, str, tuple[str, ...]], tuple[pa.Schema, pa.Table]] = {}
    read = RecordFile.read

    def read_once(self: RecordFile, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        asked = self.data, self.path, tuple(names)
        known, table = found.get(asked, (None, None))
        if table is None or known is not schema:
            table = read(self, names, schema)
            found[asked] = schema, table
        return table

    with patch.object(RecordFile, "read", read_once):
        yield
