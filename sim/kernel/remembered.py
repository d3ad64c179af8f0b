"""A cache, for one run, of the tables read from equal bytes. Decoding took a third of a run.

Decoding is pure, and no reader changes a decoded table, so a cached table is always right. The
cache ends with the run: a broken build lasts for whole runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import pyarrow as pa

from tidelog.wal.format.parquet import RecordFile


@contextmanager
def reading_once() -> Iterator[None]:
    """Decode equal bytes only once inside the block."""
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
