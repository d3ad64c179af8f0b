"""Consensus of a read-only connection: it reads, and refuses every change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from tidelog.consensus.port import Consensus, KeyRecord, VersionedRecord
from tidelog.core.ids import SeqNo
from tidelog.store.wrappers.read_only import write_refused


@dataclass(frozen=True, slots=True)
class ReadOnlyConsensus:
    """Consensus whose changes raise UsageError, and reach no store and no database."""

    inner: Consensus

    async def head(self, key: str) -> VersionedRecord | None:
        return await self.inner.head(key)

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        raise write_refused()

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        raise write_refused()

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        return await self.inner.scan(key, start, limit)

    async def truncate(self, key: str, before: SeqNo) -> int:
        raise write_refused()

    async def sweep(self, key: str) -> int:
        raise write_refused()

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        async for key in self.inner.list_keys(prefix):
            yield key
