"""The model of a keyed log with blocking calls, like those of the HTTP client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from kit.keyed_model import MemoryKeyed
from tidelog.keyed.port import KeyedScan


class BlockingScan:
    """A scan of the model, read as a whole."""

    def __init__(self, scan: KeyedScan) -> None:
        self._scan = scan

    def to_arrow(self) -> pa.Table:
        return asyncio.run(self._scan.to_arrow())

    @property
    def next_sequence(self) -> int:
        return self._scan.next_sequence


class BlockingModel:
    """A keyed log of the model; each call runs in an event loop of its own."""

    def __init__(self, log: MemoryKeyed) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        """Return a method of the model as a blocking function."""
        method = getattr(self._log, name)

        def call(*given: Any, **options: Any) -> Any:
            async def whole() -> Any:
                return await method(*given, **options)

            return asyncio.run(whole())

        return call

    def scan(self, *given: Any, **options: Any) -> BlockingScan:
        return BlockingScan(self._log.scan(*given, **options))

    def keys(self, *given: Any, **options: Any) -> Iterator[pa.Table]:
        async def whole() -> list[pa.Table]:
            return [page async for page in self._log.keys(*given, **options)]

        return iter(asyncio.run(whole()))
