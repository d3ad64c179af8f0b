"""Deletions that wait first, so that running reads can finish."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

from tidelog.cli.output import say

T = TypeVar("T")


async def with_patience(work: Awaitable[T], grace: float) -> T:
    """Await work that waits for readers; after a second, a message on a terminal explains it."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=1.0)
        if not done and grace > 1 and sys.stderr.isatty():
            say(f"Waiting {grace:g} s for running reads before deletions (--grace SECONDS) ...")
        return await task
    finally:
        task.cancel()
