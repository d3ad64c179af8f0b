"""Processes that tests start, and that may not outlive them."""

from __future__ import annotations

import ctypes
import signal
from typing import Final

_LIBC: Final = ctypes.CDLL(None)  # Loaded here: between fork and exec there may be no locks taken.
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, be that by ``kill -9``."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
