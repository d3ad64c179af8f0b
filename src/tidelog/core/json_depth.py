"""The nesting depth of a JSON text, computed before a parser with a depth limit reads it."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

# The closing quote is optional: in a truncated text, each quote would start a search to the end.
_TEXT: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def depth_of(data: bytes, *, least: int) -> int:
    """Return how deep arrays and objects are nested; 0 if at most ``least`` brackets open."""
    if data.count(b"[") + data.count(b"{") <= least:
        return 0
    brackets = _TEXT.sub(b"", data).translate(None, delete=_NO_BRACKETS)
    return max(accumulate(1 if byte in b"[{" else -1 for byte in brackets), default=0)
