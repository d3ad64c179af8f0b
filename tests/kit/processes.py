"""Processes that tests start, and that must end with them."""

from __future__ import annotations

import ctypes
import signal
from typing import Final

_LIBC: Final = ctypes.CDLL(None)  # Loaded here, because no lock may be taken between fork and exec.
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, also by ``kill -9``."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
