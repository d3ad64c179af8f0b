"""A readable keyed log: its state, its runs, and the loose fragments of its wal.

Source: rfc-0001, "Scan API" and "Count API"; design page 5, "Calls".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelog.errors import HandleError, NoSuchSegment, ObjectNotFound, ReadOvertaken, UsageError
from tidelog.keyed.port import KeyedReads
from tidelog.keyed.read.by_spark import SparkView, spark_keyed_room
from tidelog.keyed.read.feed import FollowingScan, KeyedFeed
from tidelog.keyed.read.listing import merged_keys
from tidelog.keyed.read.scanning import TRIES, ViewScan, with_views
from tidelog.keyed.read.state_handle import KeyedStateHandle, KeyedView
from tidelog.keyed.states.describing import checkpoint_infos, segments_of
from tidelog.keyed.states.transition import check_readable
from tidelog.keyed.values import (
    CheckpointInfo,
    Count,
    KeyedInfo,
    KeyedQuery,
    Keys,
    Segment,
    check_key,
    check_segments,
    check_sequences,
    prefix_limit,
)
from tidelog.wal.read.limits import time_us_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REFRESH_US = 1_000_000


@dataclass(kw_only=True, repr=False, eq=False)
class KeyedReader(KeyedReads):
    """A handle for reading; it shows the records known at its last refresh.

    Units: a read refreshes the handle if the last refresh is at least ``refresh_us`` ago. With
        ``at_checkpoint``, it always shows the contents of a checkpoint.
    """

    name: str
    state_handle: KeyedStateHandle
    refresh_us: int = REFRESH_US
    at_checkpoint: str | None = None
    _feed: KeyedFeed = field(init=False)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._feed = KeyedFeed(reader=self.state_handle.tail.reader, clock=self.state_handle.clock)

    def __repr__(self) -> str:
        return f"<tidelog keyed log {self.name!r}>"

    def scan(
        self,
        keys: Keys | bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> ViewScan:
        query = KeyedQuery(
            keys=Keys.of(keys), start=start, limit=limit, rows=rows, newest_first=newest_first
        )
        return ViewScan(look=self._look, query=query, clock=self.state_handle.clock)

    def follow(
        self, keys: Keys | bytes | None = None, *, start: int | None = None
    ) -> FollowingScan:
        if self.at_checkpoint is not None:
            raise UsageError("a checkpoint gets no new records: follow the log itself")
        wanted = Keys.all() if keys is None else Keys.of(keys)
        check_sequences(start or 0)
        return FollowingScan(
            feed=self._feed,
            keys=wanted,
            scan=lambda reached: ViewScan(
                # Always read the newest state: after a collection, an older view could lack the
                # fragments that follow, and the follower would never advance.
                look=lambda _: self._look_now(True),
                query=KeyedQuery(keys=wanted, start=reached),
                clock=self.state_handle.clock,
            ),
            begin=self._durable_end,
            reached=start,
        )

    async def count(self, key: bytes, start: int = 0, limit: int | None = None) -> int:
        check_key(key)
        check_sequences(start, limit)

        async def counted(view: KeyedView) -> int:
            check_readable(view.state, start)
            total = 0
            for source in view.between(max(start, view.oldest), limit):
                if source.may_hold(key):
                    total += await source.count(key, start, _within(view, limit))
            return total

        return await with_views(self._look, self.state_handle.clock, counted)

    async def count_approximate(
        self, key: bytes, start: int = 0, limit: int | None = None
    ) -> Count:
        check_key(key)
        check_sequences(start, limit)

        async def bounded(view: KeyedView) -> Count:
            check_readable(view.state, start)
            bounds = [
                await source.bound(key, start, _within(view, limit))
                for source in view.between(max(start, view.oldest), limit)
                if source.may_hold(key)
            ]
            least, most = sum(b[0] for b in bounds), sum(b[1] for b in bounds)
            return Count(value=(least + most) // 2, least=least, most=most)

        return await with_views(self._look, self.state_handle.clock, bounded)

    async def keys(
        self,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        segments: tuple[int, int | None] | None = None,
    ) -> AsyncGenerator[pa.Table, None]:
        check_key(prefix)
        if segments is not None:
            check_segments(segments)
        # The smallest key after a key is that key plus a zero byte.
        first = prefix if after is None else max(prefix, check_key(after) + b"\0")
        for attempt in range(TRIES):
            view = await self._look(attempt > 0)
            start, limit = (0, None) if segments is None else _window(view, segments)
            pages = merged_keys(
                view.between(start, limit), first, prefix_limit(prefix), start, limit
            )
            try:
                async with aclosing(pages):
                    async for page in pages:
                        if page.num_rows:
                            yield page
                            first = page.column("key")[-1].as_py() + b"\0"
                return
            except ObjectNotFound as error:
                if attempt + 1 == TRIES:
                    raise ReadOvertaken(
                        "a compactor merged and deleted runs during the read: continue after the "
                        "last key",
                        why=error,
                    ) from error

    async def segments(self, start: int = 0, limit: int | None = None) -> list[Segment]:
        check_sequences(start, limit)
        view = await self._stated()
        check_readable(view.state, start)
        known = segments_of(view.state)
        if known[-1].start >= view.next:
            known.pop()  # No record has arrived in it yet.
        return [
            segment
            for segment in known
            if (segment.limit is None or segment.limit > start)
            and (limit is None or segment.start < limit)
        ]

    async def sequence_at(self, when: int | datetime) -> int:
        time_us = time_us_of(when)

        async def first(view: KeyedView) -> int:
            for source in view.sources:
                sequence = await source.first_at(time_us)
                if sequence is not None:
                    return sequence
            return view.next

        return await with_views(self._look, self.state_handle.clock, first)

    async def next_sequence(self) -> int:
        return (await self._look(False)).next

    async def refresh(self) -> int:
        return (await self._look(True)).next

    async def checkpoints(self) -> list[CheckpointInfo]:
        return checkpoint_infos((await self._stated()).state)

    async def describe(self) -> KeyedInfo:
        view = await self._stated()
        state = view.state
        return KeyedInfo(
            name=self.name,
            oldest=state.retired,
            next_sequence=view.next,
            compacted=state.compacted,
            segments=len(state.seals) + 1,
            runs=len(state.runs),
            bytes=sum(run.bytes for run in state.runs),
            records_in_runs=sum(run.records for run in state.runs),
            loose_fragments=len(self.state_handle.tail.pieces),
            sealing=state.sealing,
            retention=state.retention,
            checkpoints=tuple(checkpoint_infos(state)),
        )

    async def to_spark(
        self,
        spark: SparkSession,
        keys: Keys | bytes | None = None,
        *,
        start: int = 0,
        limit: int | None = None,
    ) -> DataFrame:
        """Return the durable records of some keys, or of all, as a DataFrame.

        See `spark_view`, which also returns the frontier.

        Raises:
            See `scan`. Also UsageError: Spark's executors cannot reach the location.
        """
        return (await self.spark_view(spark, keys, start=start, limit=limit)).frame

    async def spark_view(
        self,
        spark: SparkSession,
        keys: Keys | bytes | None = None,
        *,
        start: int = 0,
        limit: int | None = None,
    ) -> SparkView:
        """Return `to_spark` as ``frame``, and the frontier to which it is complete.

        The frame shows the records at the time of this call. It is readable for one hour after
        these are compacted or retired. Its rows are in no defined order.

        Raises:
            See `to_spark`. HandleError: the handle is closed.
        """
        self._check_open()
        wanted = Keys.all() if keys is None else Keys.of(keys)
        query = KeyedQuery(keys=wanted, start=start, limit=limit)
        view: SparkView = await spark_keyed_room("frame").keyed_view(
            spark, self.state_handle, query, checkpoint=self.at_checkpoint
        )
        return view

    async def close(self) -> None:
        self._is_closed = True
        await self._feed.stop()

    def _check_open(self) -> None:
        if self._is_closed:
            raise HandleError("the handle is closed: open the log again", log=self.name)

    async def _refresh(self, fresh: bool) -> None:
        """Read the newest state; unless ``fresh``, reuse one younger than ``refresh_us``.

        Raises:
            HandleError: this handle is closed. Otherwise see `KeyedStateHandle.refresh`.
        """
        self._check_open()
        since_us = None if fresh else self.state_handle.clock.monotonic_us() - self.refresh_us
        await self.state_handle.refresh(unless_since_us=since_us)

    async def _look(self, fresh: bool) -> KeyedView:
        """Return the newest view; see `_refresh`."""
        await self._refresh(fresh)
        if self.at_checkpoint is not None:
            return self.state_handle.view_at(self.at_checkpoint)
        return self.state_handle.view()

    async def _stated(self) -> KeyedView:
        """Return the view that describes the log's state, which any process may change."""
        return await self._look(False)

    async def _look_now(self, fresh: bool) -> KeyedView:
        """Return the view of all records that are durable now."""
        return await self._look(True)

    async def _durable_end(self) -> int:
        return (await self._look_now(True)).next


def _within(view: KeyedView, limit: int | None) -> int:
    """Return the end of a read: records after the view are excluded."""
    return view.next if limit is None else min(limit, view.next)


def _window(view: KeyedView, segments: tuple[int, int | None]) -> tuple[int, int | None]:
    """Return the sequences of the segments with these ids.

    Raises:
        NoSuchSegment: no such segment. UsageError: the range is reversed.
    """
    first, last = segments
    check_sequences(first, last)
    known = segments_of(view.state)
    chosen = [
        segment for segment in known if segment.id >= first and (last is None or segment.id < last)
    ]
    if not chosen:
        raise NoSuchSegment("no segment has that id: list the segments", first=first)
    return chosen[0].start, chosen[-1].limit
