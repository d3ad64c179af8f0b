"""Work that gives readers time before it deletes what they read."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

from tidelog.cli.output import say

T = TypeVar("T")


async def with_patience(work: Awaitable[T], grace: float) -> T:
    """Do work that waits for readers; say so if it takes a while and somebody watches."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=1.0)
        if not done and grace > 1 and sys.stderr.isatty():
            say(f"Readers are given {grace:g} s before anything is deleted (--grace SECONDS) ...")
        return await task
    finally:
        task.cancel()
