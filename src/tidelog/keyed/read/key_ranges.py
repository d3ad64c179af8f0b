"""Ranges of keys that are small enough to read at once, by the record counts of directories."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
import pyarrow as pa


async def key_ranges(
    pages: AsyncGenerator[pa.Table, None], first: bytes, last: bytes | None, rows: int
) -> AsyncGenerator[tuple[bytes, bytes | None, bool], None]:
    """Yield consecutive ranges of keys, each with at most about ``rows`` records.

    ``pages`` are the keys ``[first, last)`` in order, each once, with their number of ``records``.
    Shape: the first key, the key after the last one (None: no limit), and whether the range is a
        single key with more records.
    """
    begin, held = first, 0
    async with aclosing(pages):
        async for page in pages:
            if not page.num_rows:
                continue
            counts = page.column("records").to_numpy()
            keys = page.column("key")
            at = 0
            while at < len(counts):
                totals = held + np.cumsum(counts[at:])
                fitting = int(np.searchsorted(totals, rows, side="right"))
                if fitting == len(totals):
                    held = int(totals[-1])
                    break
                at += fitting
                cut: bytes = keys[at].as_py()
                if cut > begin or held or fitting:
                    yield begin, cut, False
                begin, held = cut, 0
                if counts[at] > rows:
                    yield cut, cut + b"\0", True
                    begin = cut + b"\0"
                    at += 1
    yield begin, last, False
