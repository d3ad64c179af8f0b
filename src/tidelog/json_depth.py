"""The depth of a json text, known before a parser that has a limit of its own reads it."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

# The closing quote may be missing: of a text that is cut off, each quote would begin a search.
_TEXT: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def depth_of(data: bytes, *, least: int) -> int:
    """Return how deep arrays and objects are nested, or 0 if there are too few for ``least``."""
    if data.count(b"[") + data.count(b"{") <= least:
        return 0
    brackets = _TEXT.sub(b"", data).translate(None, delete=_NO_BRACKETS)
    return max(accumulate(1 if byte in b"[{" else -1 for byte in brackets), default=0)
