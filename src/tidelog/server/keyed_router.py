"""The router of keyed logs: append, scan with follow, keys, segments, count.

It serves any log by its name in the path. It serves the log of ``--log`` also at the paths of
OpenData's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

from msgspec import UNSET, Struct

from tidelog.errors import NoSuchLog
from tidelog.http.api.failures import TooMany
from tidelog.http.api.messages import (
    AppendAnswer,
    AppendRequest,
    CountAnswer,
    CountRequest,
    KeysAnswer,
    LogAnswer,
    LogsAnswer,
    ScanRequest,
    SegmentsAnswer,
    SegmentSummary,
)
from tidelog.keyed.port import KeyedReads, KeyedWrites
from tidelog.keyed.values import DURABLE, Segment
from tidelog.server import keyed_asks, keyed_reads
from tidelog.server.app import ServerState
from tidelog.server.exposition import ServerMetrics
from tidelog.server.keyed_asks import CountAsk, ScanAsk
from tidelog.server.keyed_endpoints import KeyedHandlers, keyed_endpoints
from tidelog.server.keyed_logs import KeyedPlace, ServedLogs
from tidelog.server.keyed_reads import RecordsPage
from tidelog.server.limits import ServerLimits
from tidelog.server.request import Ask, Query
from tidelog.server.routers import Endpoint, Router

T = TypeVar("T")
M = TypeVar("M", bound=Struct)

BY_NAME: Final = "/api/v1/keyed/{name}"
BY_SETTING: Final = "/api/v1/log"


class KeyedRouter:
    """The handlers for keyed logs; ``log`` is the log at OpenData's paths."""

    def __init__(
        self,
        logs: ServedLogs,
        metrics: ServerMetrics,
        limits: ServerLimits,
        *,
        log: str | None = None,
    ) -> None:
        self._logs, self._metrics, self._log = logs, metrics, log
        # The records of a read are in memory until they are an answer, whose bytes count instead.
        self._turns = asyncio.Semaphore(limits.reads_max)
        self._followers = 0
        self._ending = asyncio.Event()

    def router(self) -> Router:
        """Return the router with its routes."""
        top = Endpoint(
            path="/api/v1/keyed",
            method="GET",
            name="keyed-logs",
            summary="List the names of the keyed logs.",
            handler=self._list,
            answer=LogsAnswer,
        )
        handlers = KeyedHandlers(
            describe=self._describe,
            append=self._append,
            scan=self._scan,
            keys=self._keys,
            segments=self._segments,
            count=self._count,
        )
        endpoints = [top, *keyed_endpoints(BY_NAME, "keyed", handlers)]
        if self._log is not None:
            endpoints += keyed_endpoints(BY_SETTING, "log", handlers)
        return Router(
            name="keyed",
            endpoints=tuple(endpoints),
            check_ready=self._check_ready,
            stop_waiting=self._ending.set,
            close=self._logs.close,
        )

    def _name(self, ask: Ask) -> str:
        name = ask.names.get("name", self._log)
        if name is None:
            raise NoSuchLog("this server has no default log: name a log in the path")
        return name

    def _reading(self, ask: Ask) -> AbstractAsyncContextManager[KeyedReads]:
        return self._logs.using(self._name(ask))

    async def _list(self, ask: Ask) -> Struct:
        return LogsAnswer(logs=await self._logs.names())

    async def _describe(self, ask: Ask) -> Struct:
        async with self._reading(ask) as log:
            description = await log.describe()
        names = [name for name in LogAnswer.__struct_fields__ if name != "status"]
        return LogAnswer(**{name: getattr(description, name) for name in names})

    async def _append(self, ask: Ask) -> Struct:
        name = self._name(ask)
        await self._logs.check_append(name)
        message = await ask.message(AppendRequest)
        records = keyed_asks.records_of(message)
        wait_us = keyed_asks.append_wait_us(message, ask.limits)
        timestamp_us = None if message.timestamp_us is UNSET else message.timestamp_us
        durable = message.await_durable is not False

        async def send(log: KeyedWrites) -> int:
            if not wait_us:
                return await log.try_append(records, durable=durable, timestamp_us=timestamp_us)
            return await log.append(
                records, durable=durable, timestamp_us=timestamp_us, timeout_us=wait_us
            )

        first = await self._logs.append(name, send)
        self._metrics.records_in.inc(len(records))
        self._metrics.bytes_in.inc(sum(len(key) + len(value) for key, value in records))
        return AppendAnswer(records_appended=len(records), start_sequence=first)

    async def _scan(self, ask: Ask) -> Struct:
        wanted = await _parse_request(
            ask, ScanRequest, keyed_asks.scan_of_message, keyed_asks.scan_of_query
        )
        async with self._reading(ask) as log:
            if wanted.follow:
                page = await self._followed(ask, log, wanted)
            else:
                async with self._turns:
                    page = await keyed_reads.scan_page(log, wanted, ask.limits.scan_bytes_max)
        self._metrics.records_out.inc(page.records.num_rows)
        self._metrics.bytes_out.inc(keyed_reads.content_bytes(page.records))
        return keyed_reads.answer_of(page, wanted)

    async def _followed(self, ask: Ask, log: KeyedReads, wanted: ScanAsk) -> RecordsPage:
        if self._followers >= ask.limits.followers_max:
            raise TooMany(
                "the limit of waiting requests is reached: try again in a moment",
                most=ask.limits.followers_max,
            )
        self._followers += 1
        self._metrics.followers.set(self._followers)
        try:
            given_up: list[Callable[[], Awaitable[object]]] = [ask.gone, self._ending.wait]
            return await keyed_reads.follow_page(
                log,
                wanted,
                ask.limits.scan_bytes_max,
                turns=self._turns,
                given_up=given_up,
            )
        finally:
            self._followers -= 1
            self._metrics.followers.set(self._followers)

    async def _keys(self, ask: Ask) -> Struct:
        query = ask.query
        first = query.whole("start_segment", most=2**32 - 1)
        last = query.whole("end_segment", most=2**32 - 1)
        segments = None if first is None and last is None else (first or 0, last)
        async with self._turns, self._reading(ask) as log:
            keys, is_more = await keyed_reads.keys_page(
                log,
                query.key("prefix") or b"",
                after=query.key("after"),
                segments=segments,
                rows=keyed_asks.checked_rows(query.whole("limit", least=1), ask.limits),
            )
        return KeysAnswer(keys=keys, more=is_more)

    async def _segments(self, ask: Ask) -> Struct:
        start, limit = keyed_asks.range_of_query(ask.query)
        rows = keyed_asks.checked_rows(
            ask.query.whole("limit", least=1) or ask.limits.rows_max, ask.limits
        )
        async with self._turns, self._reading(ask) as log:
            segments = await log.segments(start, limit)
        return SegmentsAnswer(
            segments=list(map(_listed, segments[:rows])), more=len(segments) > rows
        )

    async def _count(self, ask: Ask) -> Struct:
        wanted = await _parse_request(
            ask, CountRequest, keyed_asks.count_of_message, keyed_asks.count_of_query
        )
        async with self._turns, self._reading(ask) as log:
            return await _counted(log, wanted)

    async def _check_ready(self) -> None:
        if self._log is None:
            await self._logs.names()
        else:
            async with self._logs.using(self._log) as log:
                await log.refresh()


async def _counted(log: KeyedReads, wanted: CountAsk) -> CountAnswer:
    span = (wanted.key, wanted.start, wanted.limit)
    if not wanted.approximate:
        return CountAnswer(count=await log.count(*span))
    estimate = await log.count_approximate(*span)
    return CountAnswer(count=estimate.value, least=estimate.least, most=estimate.most)


async def _parse_request(
    ask: Ask,
    message: type[M],
    of_message: Callable[[M, ServerLimits], T],
    of_query: Callable[[Query, ServerLimits], T],
) -> T:
    """Return the request, parsed from a body or from a query."""
    if ask.scope["method"] == "POST":
        return of_message(await ask.message(message), ask.limits)
    return of_query(ask.query, ask.limits)


def _listed(segment: Segment) -> SegmentSummary:
    optional = {
        "end_seq": segment.limit,
        "sealed_us": segment.sealed_us,
        "first_us": segment.first_us,
        "last_us": segment.last_us,
        "start_time_ms": None if segment.first_us is None else segment.first_us // 1_000,
    }
    return SegmentSummary(
        id=segment.id,
        start_seq=segment.start,
        records=segment.records,
        bytes=segment.bytes,
        runs=segment.runs,
        is_compacted=segment.is_compacted,
        **{name: value for name, value in optional.items() if value is not None},
    )


def routers_of(
    place: KeyedPlace,
    state: ServerState,
    *,
    log: str | None,
    is_read_only: bool,
    visibility: str = DURABLE,
) -> list[Router]:
    """Return the routers of a location; ``log`` is the keyed log at OpenData's paths."""
    logs = ServedLogs(place, is_read_only=is_read_only, visibility=visibility)
    return [KeyedRouter(logs, state.metrics, state.limits, log=log).router()]
