"""A follower's page from a scan that returns records key by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pyarrow as pa

from kit.keyed_model import MemoryKeyed
from tidelog.keyed.port import KeyedScan
from tidelog.keyed.values import KeyedQuery, Keys
from tidelog.server.keyed_asks import ScanAsk
from tidelog.server.keyed_reads import RecordsPage, follow_page

KEYS = [b"b", b"a", b"b", b"a"]


class InParts(KeyedScan):
    """Records key by key, as in a run: before its end, no sequence is safe to continue from."""

    def __init__(self, log: MemoryKeyed, scan: KeyedScan) -> None:
        self._log, self._scan = log, scan
        self._tables: AsyncGenerator[pa.Table, None] | None = None

    @property
    def next_sequence(self) -> int:
        return 1

    def __aiter__(self) -> AsyncIterator[pa.Table]:
        self._tables = self._run()
        return self._tables

    async def _run(self) -> AsyncGenerator[pa.Table, None]:
        await self._log.append([(key, b"v") for key in KEYS])
        for key in sorted(set(KEYS)):
            yield await self._log.scan(key).to_arrow()

    async def aclose(self) -> None:
        if self._tables is not None:
            await self._tables.aclose()


class RunsBehind(MemoryKeyed):
    """A log whose records are appended and compacted right before a follow."""

    def follow(self, keys: Keys | bytes | None = None, *, start: int | None = None) -> KeyedScan:
        return InParts(self, super().follow(keys, start=start))


async def page_of(ask: ScanAsk) -> RecordsPage:
    turns = asyncio.Semaphore(1)
    return await follow_page(RunsBehind(), ask, 1_000_000, turns=turns, given_up=[])


async def test_nothing_is_passed_over_where_keys_come_one_after_the_other() -> None:
    """The first table has sequences 2 and 4; continuing after them would skip 1 and 3."""
    page = await page_of(ScanAsk(query=KeyedQuery(keys=Keys.all(), start=1), follow=True))
    assert page.records["sequence"].to_pylist() == [1, 2, 3, 4]
    assert page.next_sequence == 5


async def test_a_key_goes_on_after_its_last_record() -> None:
    """A follow of one key continues after its last record, so that no record repeats."""
    page = await page_of(ScanAsk(query=KeyedQuery(keys=Keys.one(b"a"), start=1), follow=True))
    assert page.records["sequence"].to_pylist() == [2, 4]
    assert page.next_sequence == 5
