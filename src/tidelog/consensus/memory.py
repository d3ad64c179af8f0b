"""Consensus in memory: for tests, and for a single process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from tidelog.consensus.port import KeyRecord, VersionedRecord, check_truncation
from tidelog.core.ids import SeqNo, check_seqno


@dataclass(slots=True)
class MemoryConsensus:
    """Consensus in a dict of lists."""

    records: dict[str, list[VersionedRecord]] = field(default_factory=dict)

    async def head(self, key: str) -> VersionedRecord | None:
        kept = self.records.get(key)
        return kept[-1] if kept else None

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        check_seqno(seqno)
        kept = self.records.get(key, [])
        if (kept[-1].seqno if kept else 0) != seqno - 1:
            return False
        self.records.setdefault(key, []).append(VersionedRecord(seqno, bytes(data)))
        return True

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        if len(records) > 1 and not all(self._is_next(one) for one in records):
            return False
        landed = [await self.compare_and_set(one.key, one.seqno, one.data) for one in records]
        return all(landed)

    def _is_next(self, record: KeyRecord) -> bool:
        kept = self.records.get(record.key)
        return (kept[-1].seqno if kept else 0) == record.seqno - 1

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        return [r for r in self.records.get(key, []) if r.seqno >= start][:limit]

    async def truncate(self, key: str, before: SeqNo) -> int:
        check_truncation(before, await self.head(key))
        kept = self.records[key]
        dropped = [r for r in kept if r.seqno < before]
        self.records[key] = kept[len(dropped) :]
        return len(dropped)

    async def sweep(self, key: str) -> int:
        """Return 0: a killed call leaves no objects."""
        return 0

    async def found(self) -> None:
        """Do nothing: the records exist as long as the process does."""

    async def adopt(self, key: str, records: Sequence[VersionedRecord]) -> None:
        self.records.setdefault(key, list(records))

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        for key in sorted(self.records):
            if key.startswith(prefix):
                yield key
