"""Ranges of keys, cut to what is read at once, by how many records directories say each key has."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
import pyarrow as pa


async def key_ranges(
    pages: AsyncGenerator[pa.Table, None], first: bytes, last: bytes | None, rows: int
) -> AsyncGenerator[tuple[bytes, bytes | None, bool], None]:
    """Yield ranges of keys that follow each other, each with about so many records at most.

    ``pages`` are the keys ``[first, last)`` in order, each once, with how many ``records`` it has.

    Shape: the first key, the key after the last one (None: all), and whether it is one key alone
        that has more.
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
