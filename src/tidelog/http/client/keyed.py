"""A keyed log over HTTP, with the methods and errors of a local one."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Self
from urllib.parse import quote

import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import asdict, replace

from tidelog.core.clock import Clock, SystemClock
from tidelog.errors import (
    BusyError,
    HandleError,
    LocationError,
    LogFull,
    StoreRefused,
    TidelogError,
    UsageError,
)
from tidelog.http.api.keys import Base64, plain_bytes
from tidelog.http.api.messages import (
    AppendAnswer,
    AppendRequest,
    CountAnswer,
    CountRequest,
    HealthAnswer,
    KeysAnswer,
    LogAnswer,
    LogsAnswer,
    RecordIn,
    ScanAnswer,
    ScanRequest,
    SegmentsAnswer,
    SegmentSummary,
)
from tidelog.http.client.exchange import Exchange, ServerAddress
from tidelog.http.client.reading import PAGE_ROWS, HttpScan, keys_table, records_of
from tidelog.keyed.values import (
    Count,
    KeyedQuery,
    Keys,
    Segment,
    check_key,
    check_sequences,
    prefix_limit,
)

WAIT_US: Final = 30_000_000
PATIENCE_US: Final = 60_000_000
_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)  # Between polls while the server is unreachable.
TIMEOUT_S: Final = 30.0


class HttpKeyedLog:
    """A keyed log of a server: the log ``name``, or by default the server's ``--log``.

    Threads may share it. Its errors are those that the log raised, with their outcome. An append
    whose answer was lost raises OutcomeUnknown.
    """

    def __init__(
        self,
        url: str,
        name: str | None = None,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._exchange = Exchange(ServerAddress.parse(url), token, tls, timeout_s)
        self._path = "/api/v1/log" if name is None else f"/api/v1/keyed/{quote(name, safe='')}"
        self._clock = clock or SystemClock()
        self._closed = threading.Event()

    def append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        """Append records (key, value), and wait for room; see `tidelog.KeyedLog.append`."""
        until_us = None if timeout_us is None else self._clock.monotonic_us() + timeout_us
        while True:
            left_us = WAIT_US if until_us is None else until_us - self._clock.monotonic_us()
            wait_us = max(0, min(WAIT_US, left_us))
            try:
                return self._append(records, durable, timestamp_us, wait_us)
            except BusyError as error:
                if left_us <= wait_us and until_us is not None:
                    raise _with_records(error, records) from error
                if not isinstance(error, LogFull):
                    self._closed.wait(1.0)  # The server waits only for a full log.

    def try_append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
    ) -> int:
        """Append records if the log has room now; see `tidelog.KeyedLog.try_append`."""
        try:
            return self._append(records, durable, timestamp_us, 0)
        except LogFull as error:
            raise _with_records(error, records) from error

    def _append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        durable: bool,
        timestamp_us: int | None,
        wait_us: int,
    ) -> int:
        if not records:
            raise UsageError("an append needs at least one record")
        message = AppendRequest(
            records=[_record(record) for record in records],
            await_durable=durable,
            timestamp_us=UNSET if timestamp_us is None else timestamp_us,
            timeout_ms=wait_us // 1_000 if wait_us >= 1_000 else UNSET,
        )
        answer = self._exchange.post(
            f"{self._path}/append", message, AppendAnswer, wait_s=wait_us / 1e6, is_write=True
        )
        return answer.start_sequence

    def scan(
        self,
        keys: Keys | bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
        page_rows: int = PAGE_ROWS,
    ) -> HttpScan:
        """Read the records of some keys; bytes are one key. See `tidelog.KeyedLog.scan`."""
        query = KeyedQuery(
            keys=Keys.of(keys), start=start, limit=limit, rows=rows, newest_first=newest_first
        )
        wanted = replace(_request(query.keys), newest_first=newest_first)
        return HttpScan(partial(self._page, wanted), query, page_rows)

    def _page(self, wanted: ScanRequest, start: int, limit: int | None, rows: int) -> ScanAnswer:
        end = UNSET if limit is None else limit
        message = replace(wanted, start_seq=start, end_seq=end, limit=rows)
        return self._exchange.post(f"{self._path}/scan", message, ScanAnswer)

    def poll(
        self,
        keys: Keys | bytes | None = None,
        *,
        start: int = 0,
        rows: int = PAGE_ROWS,
        wait_us: int = WAIT_US,
    ) -> tuple[pa.Table, int]:
        """Return the records from ``start``, or wait for some; and the sequence to resume from.

        It reads some keys, or all. After ``wait_us`` without records the table is empty.
        """
        message = replace(
            _request(Keys.all() if keys is None else Keys.of(keys)),
            start_seq=start,
            limit=rows,
            follow=True,
            timeout_ms=wait_us // 1_000,
        )
        answer = self._exchange.post(
            f"{self._path}/scan", message, ScanAnswer, wait_s=wait_us / 1e6
        )
        return records_of(answer), answer.next_sequence

    def follow(
        self,
        keys: Keys | bytes | None = None,
        *,
        start: int | None = None,
        patience_us: int = PATIENCE_US,
    ) -> Iterator[pa.Table]:
        """Yield new records until the client is closed; see `tidelog.KeyedLog.follow`.

        A restart of the server leaves no gap and repeats no record.

        Units: ``patience_us``: the time without an answer after which an unreachable or busy server
            is an error.

        Raises:
            TidelogError: its fact ``next_sequence`` is the start to resume from. NOT_APPLIED.
        """
        wanted = Keys.all() if keys is None else Keys.of(keys)
        at = self.next_sequence() if start is None else start
        return self._followed(wanted, at, patience_us)

    def _followed(self, keys: Keys, at: int, patience_us: int) -> Iterator[pa.Table]:
        until_us, failures = self._clock.monotonic_us() + patience_us, 0
        while not self._closed.is_set():
            try:
                table, at = self.poll(keys, start=at)
            except TidelogError as error:
                if self._closed.is_set():
                    return
                if not _is_passing(error) or self._clock.monotonic_us() >= until_us:
                    facts = {**error.facts, "next_sequence": at}
                    TidelogError.__init__(error, error.sentence, outcome=error.outcome, **facts)
                    raise
                self._closed.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
                continue
            until_us, failures = self._clock.monotonic_us() + patience_us, 0
            if table.num_rows:
                yield table

    def count(self, key: bytes, start: int = 0, limit: int | None = None) -> int:
        """Return the number of records of a key in a range; see `tidelog.KeyedLog.count`."""
        return self._counted(key, start, limit, approximate=False).count

    def count_approximate(self, key: bytes, start: int = 0, limit: int | None = None) -> Count:
        """Return an estimate with bounds; see `tidelog.KeyedLog.count_approximate`."""
        answer = self._counted(key, start, limit, approximate=True)
        assert isinstance(answer.least, int)
        assert isinstance(answer.most, int)
        return Count(value=answer.count, least=answer.least, most=answer.most)

    def _counted(
        self, key: bytes, start: int, limit: int | None, *, approximate: bool
    ) -> CountAnswer:
        check_sequences(start, limit)
        message = CountRequest(
            key=Base64(check_key(key)),
            start_seq=start,
            end_seq=UNSET if limit is None else limit,
            approximate=approximate,
        )
        return self._exchange.post(f"{self._path}/count", message, CountAnswer)

    def keys(
        self,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        segments: tuple[int, int | None] | None = None,
        page_rows: int = PAGE_ROWS,
    ) -> Iterator[pa.Table]:
        """Yield keys in order, one page per table; see `tidelog.KeyedLog.keys`."""
        query: dict[str, str | int] = {"prefix_base64": _url_base64(check_key(prefix))}
        query["limit"] = page_rows
        if segments is not None:
            query["start_segment"] = segments[0]
            if segments[1] is not None:
                query["end_segment"] = segments[1]
        return self._keys(query, after)

    def _keys(self, query: dict[str, str | int], after: bytes | None) -> Iterator[pa.Table]:
        while True:
            if after is not None:
                query["after_base64"] = _url_base64(after)
            answer = self._exchange.get(f"{self._path}/keys", query, KeysAnswer)
            if answer.keys:
                yield keys_table(answer.keys)
                after = plain_bytes(answer.keys[-1].key)
            if not answer.more:
                return

    def segments(self, start: int = 0, limit: int | None = None) -> list[Segment]:
        """Return the segments that overlap a range; see `tidelog.KeyedLog.segments`."""
        check_sequences(start, limit)
        summaries: list[SegmentSummary] = []
        while True:
            query: dict[str, str | int] = {"start_seq": start}
            if limit is not None:
                query["end_seq"] = limit
            answer = self._exchange.get(f"{self._path}/segments", query, SegmentsAnswer)
            summaries += answer.segments
            last = summaries[-1].end_seq if summaries else UNSET
            if not answer.more or last is UNSET:
                return list(map(_segment, summaries))
            start = last

    def describe(self) -> LogAnswer:
        """Return a description of the log."""
        path = self._path if self.name is not None else f"{self._path}/describe"
        return self._exchange.get(path, {}, LogAnswer)

    def next_sequence(self) -> int:
        """Return the next sequence."""
        return self.describe().next_sequence

    def logs(self) -> list[str]:
        """Return the names of the server's keyed logs."""
        return self._exchange.get("/api/v1/keyed", {}, LogsAnswer).logs

    def is_healthy(self) -> bool:
        """Return True if the server answers."""
        return self._is_healthy("/-/healthy")

    def is_ready(self) -> bool:
        """Return True if the server accepts requests and its store answers."""
        return self._is_healthy("/-/ready")

    def _is_healthy(self, path: str) -> bool:
        try:
            return self._exchange.get(path, {}, HealthAnswer).status == HealthAnswer().status
        except TidelogError:
            return False

    def close(self) -> None:
        """Close the connections; followers end after their present answer."""
        self._closed.set()
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _request(keys: Keys) -> ScanRequest:
    """Return the request for some keys."""
    if keys.key is not None:
        return ScanRequest(key=Base64(keys.key))
    if keys.to_key == prefix_limit(keys.from_key):  # Older servers follow a prefix, not a range.
        return ScanRequest(prefix=Base64(keys.from_key))
    end = UNSET if keys.to_key is None else Base64(keys.to_key)
    return ScanRequest(first=Base64(keys.from_key), last=end)


def _record(record: Any) -> RecordIn:
    if not isinstance(record, tuple | list) or len(record) != 2 or type(record[1]) is not bytes:
        raise UsageError("append takes a list of (key, value), both bytes: encode texts first")
    return RecordIn(key=Base64(check_key(record[0])), value=Base64(record[1]))


def _url_base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode()


def _is_passing(error: TidelogError) -> bool:
    """Return True if the same read may succeed after the server or its store recovers."""
    is_away = isinstance(error, LocationError | BusyError | HandleError)
    return is_away and not isinstance(error, StoreRefused)


def _with_records(error: BusyError, records: Sequence[tuple[bytes, bytes]]) -> BusyError:
    if isinstance(error, LogFull):
        return LogFull(error.sentence, records=records, outcome=error.outcome)
    return error


def _segment(summary: SegmentSummary) -> Segment:
    fields = asdict(summary)
    known = {name: None if value is UNSET else value for name, value in fields.items()}
    return Segment(
        id=summary.id,
        start=summary.start_seq,
        limit=known["end_seq"],
        sealed_us=known["sealed_us"],
        first_us=known["first_us"],
        last_us=known["last_us"],
        records=summary.records,
        bytes=summary.bytes,
        runs=summary.runs,
        is_compacted=summary.is_compacted,
    )
