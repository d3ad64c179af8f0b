"""The requests to a keyed log, parsed from a query or from a body into one type. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import UnsetType

from tidelog.errors import UsageError
from tidelog.http.api.keys import JsonBytes, plain_bytes
from tidelog.http.api.messages import AppendRequest, CountRequest, ScanRequest
from tidelog.keyed.values import SEQUENCE_MAX, KeyedQuery, Keys, chosen_keys
from tidelog.server.limits import ServerLimits
from tidelog.server.request import Query
from tidelog.server.routers import Parameter

ROWS: Final = 32  # The default of OpenData's log.
FOLLOW_MS: Final = 30_000
_ENDLESS: Final = 2**64 - 1  # Some clients send this as a missing limit.

_WHOLE: Final = {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX}
_COUNT: Final = {"type": "integer", "minimum": 1}
_FLAG: Final = {"type": "boolean"}


def bytes_parameters(name: str, told: str) -> tuple[Parameter, ...]:
    """Return the three parameters for bytes in a query: escaped, base64 and hex."""
    return (
        Parameter(name, {"type": "string"}, f"{told}: escaped, any byte as %XX."),
        Parameter(
            f"{name}_base64",
            {"type": "string", "contentEncoding": "base64"},
            f"{told}: in base64, of either alphabet.",
        ),
        Parameter(f"{name}_hex", {"type": "string"}, f"{told}: in hex."),
    )


KEY: Final = bytes_parameters("key", "A key")
RANGE: Final = (
    Parameter("start_seq", _WHOLE, "The first sequence. The default, 0, is the oldest stored one."),
    Parameter(
        "end_seq",
        {**_WHOLE, "maximum": _ENDLESS},
        "Stop before this sequence. The default is the end.",
    ),
)
LIMIT: Final = Parameter(
    "limit", _COUNT, f"The greatest number of records or keys. The default is {ROWS}."
)
SCAN: Final = (
    *KEY,
    *bytes_parameters("prefix", "A prefix of the keys"),
    *bytes_parameters("first", "The first key of a range"),
    *bytes_parameters("last", "The end of the range of keys (exclusive)"),
    *RANGE,
    LIMIT,
    Parameter("newest_first", _FLAG, "Newest records first."),
    Parameter("follow", _FLAG, "Wait for records if none exists."),
    Parameter(
        "timeout_ms", _WHOLE, f"The greatest wait in milliseconds. The default is {FOLLOW_MS}."
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanAsk:
    """A page of a query, of at most ``rows`` records; with ``follow``, wait for the first one."""

    query: KeyedQuery
    rows: int = ROWS
    follow: bool = False
    wait_us: int = FOLLOW_MS * 1_000

    def __post_init__(self) -> None:
        if self.follow and self.query.newest_first:
            raise UsageError("follow and newest_first exclude each other: pass one")

    @property
    def key(self) -> bytes | None:
        return self.query.keys.key


@dataclass(frozen=True, slots=True, kw_only=True)
class CountAsk:
    """A count of the records of a key."""

    key: bytes
    start: int
    limit: int | None
    approximate: bool


def scan_of_query(query: Query, limits: ServerLimits) -> ScanAsk:
    """Return the scan that a query requests."""
    start, limit = range_of_query(query)
    follow = query.flag("follow")
    return ScanAsk(
        query=KeyedQuery(
            keys=_keys(*map(query.key, ("key", "prefix", "first", "last"))),
            start=start,
            limit=_reachable(start, limit, follow),
            newest_first=query.flag("newest_first"),
        ),
        rows=checked_rows(query.whole("limit", least=1), limits),
        follow=follow,
        wait_us=_wait_us(query.whole("timeout_ms"), limits),
    )


def scan_of_message(message: ScanRequest, limits: ServerLimits) -> ScanAsk:
    """Return the scan that a body requests."""
    start, limit = _start(message.start_seq), _limit(_or_none(message.end_seq))
    given = message.key, message.prefix, message.first, message.last
    follow = message.follow is True
    return ScanAsk(
        query=KeyedQuery(
            keys=_keys(*map(_bytes, given)),
            start=start,
            limit=_reachable(start, limit, follow),
            newest_first=message.newest_first is True,
        ),
        rows=checked_rows(_or_none(message.limit), limits),
        follow=follow,
        wait_us=_wait_us(_or_none(message.timeout_ms), limits),
    )


def _keys(key: bytes | None, prefix: bytes | None, first: bytes | None, last: bytes | None) -> Keys:
    if key is None and prefix is None and first is None and last is None:
        raise UsageError("pass one of key, prefix, and a range (first, last)")
    return chosen_keys(
        key=key, prefix=prefix, from_key=first, to_key=last, names=("key", "prefix", "first, last")
    )


def _reachable(start: int, limit: int | None, follow: bool) -> int | None:
    """Return the limit; a follower that is past it gets an empty page, not an error."""
    return max(start, limit) if follow and limit is not None else limit


def range_of_query(query: Query) -> tuple[int, int | None]:
    """Return the range of sequences that a query requests."""
    return query.whole("start_seq") or 0, _limit(query.whole("end_seq", most=_ENDLESS))


def count_of_query(query: Query, limits: ServerLimits) -> CountAsk:  # noqa: ARG001  Like a scan's.
    """Return the count that a query requests."""
    start, limit = range_of_query(query)
    return CountAsk(
        key=_needed(query.key("key")),
        start=start,
        limit=limit,
        approximate=query.flag("approximate"),
    )


def count_of_message(message: CountRequest, limits: ServerLimits) -> CountAsk:  # noqa: ARG001
    """Return the count that a body requests."""
    return CountAsk(
        key=_needed(_bytes(message.key)),
        start=_start(message.start_seq),
        limit=_limit(_or_none(message.end_seq)),
        approximate=message.approximate is True,
    )


def records_of(message: AppendRequest) -> list[tuple[bytes, bytes]]:
    """Return the records of a body."""
    return [(plain_bytes(record.key), plain_bytes(record.value)) for record in message.records]


def checked_rows(rows: int | None, limits: ServerLimits) -> int:
    """Return the greatest number of rows for an answer.

    Raises:
        UsageError: the request exceeds the server's limit.
    """
    if rows is None:
        return min(ROWS, limits.rows_max)
    if rows > limits.rows_max:
        raise UsageError(f"limit must be at most {limits.rows_max}: read more in further requests")
    return rows


def append_wait_us(message: AppendRequest, limits: ServerLimits) -> int:
    """Return how long an append may wait for room, at most the server's limit."""
    return min((_or_none(message.timeout_ms) or 0) * 1_000, limits.append_us_max)


def _wait_us(wait_ms: int | None, limits: ServerLimits) -> int:
    """Return how long to wait for records, at most the server's limit; a client polls again."""
    asked_us = (FOLLOW_MS if wait_ms is None else wait_ms) * 1_000
    return min(asked_us, limits.follow_us_max)


def _start(start: int | UnsetType) -> int:
    return _or_none(start) or 0


def _limit(limit: int | None) -> int | None:
    if limit is not None and limit > _ENDLESS:
        raise UsageError(f"endSeq must be at most {_ENDLESS}")
    return None if limit is None or limit > SEQUENCE_MAX else limit


def _needed(key: bytes | None) -> bytes:
    if key is None:
        raise UsageError("the key is missing: pass one; an empty text is the empty key")
    return key


def _bytes(value: JsonBytes | UnsetType) -> bytes | None:
    return None if isinstance(value, UnsetType) else plain_bytes(value)


def _or_none(value: int | UnsetType) -> int | None:
    return None if isinstance(value, UnsetType) else value
