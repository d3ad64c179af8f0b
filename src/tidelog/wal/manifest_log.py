"""The public interface of a log of manifest commits, over its writer and its reader.

Source: wal3, "Interface"; design page 3, "Manifest commit".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from tidelog.core.arguments import quoted
from tidelog.errors import ObjectNotFound, UsageError
from tidelog.store.wrappers.read_only import refuses_writes
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.streams import Control, StreamInfo
from tidelog.wal.format.wal3_records import check_shown
from tidelog.wal.log import LOG_RECORDS, Log
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.manifest_protocol.writer import Wal3Writer
from tidelog.wal.read.bounds import POLL_FIRST_US, POLL_MOST_US, Bounds, check_fragment, check_range
from tidelog.wal.read.head import Head, load_living
from tidelog.wal.read.limits import Limits, check_limits, time_us_of
from tidelog.wal.read.record_reader import limited
from tidelog.wal.scrub.report import ScrubReport
from tidelog.wal.scrub.tree_scrub import scrub
from tidelog.wal.slot_protocol.seek import first_at


@refuses_writes()
@dataclass(slots=True, kw_only=True, repr=False)
class ManifestLog(Log):
    """A log of manifest commits, with exactly the bytes of Chroma's wal3."""

    protocol: ClassVar[str] = "manifest"

    _writer: Wal3Writer = field(init=False)
    _reader: Wal3Reader = field(init=False)

    def __post_init__(self) -> None:
        committer = Committer(
            store=self.store, clock=self.clock, writer=self.writer, rollover=self.shape.rollover
        )
        self._writer = Wal3Writer(committer=committer, batching=self.batching)
        self._writer.end_with(self)
        self._reader = Wal3Reader(store=self.store, clock=self.clock)

    async def streams(self) -> list[StreamInfo]:
        """See `Log`."""
        raise self._no_streams()

    async def _control(self, control: Control) -> int:
        raise self._no_streams()

    def scan(
        self,
        start: int = 0,
        *,
        limit: int | None = None,
        limits: Limits | None = None,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> AsyncGenerator[pa.Table, None]:
        """See `Log`; there are no streams, no keys and no control records."""
        check_range(start, limit)
        check_limits(limits)
        self._refuse(stream, key)
        found = _all_as_log_records(self._reader.scan(start, limit=limit))
        return self._in_range(found if limits is None else limited(found, limits), start)

    def follow(
        self,
        start: int = 0,
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> AsyncIterator[pa.Table]:
        """See `Log`; there are no streams, no keys and no control records."""
        self._refuse(stream, key)
        check_range(start)
        return self._follow(start)

    async def _follow(self, start: int) -> AsyncIterator[pa.Table]:
        head = await load_living(self.store)
        reached, wait_us = start or head.manifest.oldest, POLL_FIRST_US
        while True:
            async with aclosing(self._reader.records.scan(head.manifest, reached)) as found:
                async for after, records in found:
                    reached = after
                    wait_us = POLL_FIRST_US
                    yield as_log_records(records)
            head = await self._newer(head)
            if head.manifest.next <= reached:
                await self.clock.sleep(wait_us)
                wait_us = min(2 * wait_us, POLL_MOST_US)

    async def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        """See `Log`."""
        check_range(start, limit)
        found = await self._reader.fragments(start=start, limit=limit)
        if not found:
            await self._refuse_beyond(start)
        return found

    async def fetch(self, fragment: Fragment) -> pa.Table:
        """See `Log`."""
        check_fragment(fragment)
        try:
            return as_log_records(await self._reader.records.fetch(fragment))
        except ObjectNotFound:
            await load_living(self.store)  # This raises NoSuchLog if the log was dropped.
            raise

    async def position_at(self, when: int | datetime) -> int:
        """See `Log`; wal3's manifests have no times, so this reads fragment after fragment."""
        time_us = time_us_of(when)
        manifest = await self._reader.manifest()
        async with aclosing(self._reader.records.scan(manifest)) as fragments:
            async for _, records in fragments:
                if (found := first_at(records, time_us)) is not None:
                    return found
        return manifest.next

    async def bounds(self) -> Bounds:
        """See `Log`."""
        manifest = await self._reader.manifest()
        return Bounds(oldest=manifest.oldest, next=manifest.next, seal=None)

    async def scrub(self, start: int = 0, *, limit: int | None = None) -> ScrubReport:
        """See `Log`."""
        return await self._scrubbed(scrub(self._reader, start, limit), start)

    async def seal(self, *, successor: str = "") -> Seal:
        """See `Log`."""
        raise UsageError(
            "a log of the manifest protocol cannot be sealed: use a log of the slot protocol",
            log=self.name,
            successor=quoted(successor),
        )

    def _refuse_options(self, stream: bytes | None, key: object, timestamp_us: int | None) -> None:
        self._refuse(stream, key)
        if timestamp_us is not None:
            raise UsageError(
                "a log of the manifest protocol gives each record the time of its write: omit "
                "timestamp_us, or use a log of the slot protocol"
            )

    def _refuse(self, stream: bytes | None, key: object) -> None:
        if stream is not None:
            raise self._no_streams()
        if key is not None:
            raise self._no_keys()

    def _no_keys(self) -> UsageError:
        return UsageError(
            "a log of the manifest protocol has no keys: use a log of the slot protocol",
            log=self.name,
        )

    def _no_streams(self) -> UsageError:
        return UsageError(
            "a log of the manifest protocol has no streams: use a log of the slot protocol",
            log=self.name,
        )

    async def _newer(self, head: Head) -> Head:
        # The store does not send an unchanged manifest again.
        if await self.store.refresh(MANIFEST, head.e_tag) is None:
            return head
        return await load_living(self.store)


async def _all_as_log_records(
    tables: AsyncGenerator[pa.Table, None],
) -> AsyncGenerator[pa.Table, None]:
    async with aclosing(tables):
        async for records in tables:
            yield as_log_records(records)


def as_log_records(records: pa.Table) -> pa.Table:
    """Return the records of a wal3 fragment with the columns of any log.

    Raises:
        UsageError: see `check_shown`.
    """
    check_shown(records)
    none: Any = pa.nulls(records.num_rows, pa.binary())
    columns = [
        records.column("position").cast(pa.int64()),
        records.column("timestamp_us").cast(pa.int64()),
        none,
        none,
        records.column("body"),
    ]
    return pa.table(columns, schema=LOG_RECORDS)
