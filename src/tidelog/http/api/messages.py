"""The messages of the HTTP API of keyed logs; see ``keyed_log.proto``.

In JSON, names are lowerCamelCase, and whole numbers are numbers. A field without a value is
omitted. A key or a value is a text, or ``{"base64": ...}`` if its bytes are not UTF-8. ``NUMBERS``
has the number of each field in protobuf.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.http.api.keys import JsonBytes

OK: Final = "success"
ERROR: Final = "error"

# Protobuf must distinguish an absent key from the empty key.
Required = Annotated[JsonBytes, Meta(extra={"is_optional": True})]
# Clients without a limit send 2^64-1.
EndSequence = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": 2**64 - 1})]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
OneUp = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class RecordIn(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A record to append: a key and a value."""

    NUMBERS: ClassVar[dict[str, int]] = {"key": 1, "value": 2}

    key: Required
    value: Required


class AppendRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Records to append together, with consecutive sequences."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "records": 1,
        "await_durable": 2,
        "timestamp_us": 16,
        "timeout_ms": 17,
    }

    records: Annotated[list[RecordIn], Meta(min_length=1)]
    await_durable: bool | UnsetType = UNSET
    timestamp_us: Whole | UnsetType = UNSET
    timeout_ms: Whole | UnsetType = UNSET


class AppendAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of appended records, and the sequence of the first."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "status": 1,
        "records_appended": 2,
        "start_sequence": 3,
    }

    status: str = OK
    records_appended: int
    start_sequence: int


class ScanRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A scan of one key, of a prefix, or of the keys from ``first`` to before ``last``."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "key": 1,
        "start_seq": 2,
        "end_seq": 3,
        "limit": 4,
        "follow": 5,
        "timeout_ms": 6,
        "prefix": 16,
        "first": 17,
        "last": 18,
        "newest_first": 19,
    }

    key: JsonBytes | UnsetType = UNSET
    prefix: JsonBytes | UnsetType = UNSET
    first: JsonBytes | UnsetType = UNSET
    last: JsonBytes | UnsetType = UNSET
    start_seq: Whole | UnsetType = UNSET
    end_seq: EndSequence | UnsetType = UNSET
    limit: OneUp | UnsetType = UNSET
    follow: bool | UnsetType = UNSET
    timeout_ms: Whole | UnsetType = UNSET
    newest_first: bool | UnsetType = UNSET


class ScanValue(Struct, frozen=True, kw_only=True, rename="camel"):
    """A record; ``key`` is present if the scan was for several keys."""

    NUMBERS: ClassVar[dict[str, int]] = {"sequence": 1, "value": 2, "timestamp_us": 16, "key": 17}

    sequence: int
    value: JsonBytes
    timestamp_us: int
    key: JsonBytes | UnsetType = UNSET


class ScanAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """Records, and the sequence to resume from; ``more`` means that a limit ended the answer."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "status": 1,
        "key": 2,
        "values": 3,
        "next_sequence": 4,
        "more": 16,
    }

    status: str = OK
    key: JsonBytes | UnsetType = UNSET
    values: list[ScanValue]
    next_sequence: int
    more: bool = False


class KeyListed(Struct, frozen=True, kw_only=True, rename="camel"):
    """A key, the number of its records, and its lowest and highest sequence."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "key": 1,
        "records": 16,
        "min_sequence": 17,
        "max_sequence": 18,
    }

    key: JsonBytes
    records: int
    min_sequence: int
    max_sequence: int


class KeysAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """Keys in the order of their bytes; ``more`` means that other keys follow."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1, "keys": 2, "more": 16}

    status: str = OK
    keys: list[KeyListed]
    more: bool = False


class SegmentListed(Struct, frozen=True, kw_only=True, rename="camel"):
    """A segment; the active one has no end. Its numbers count only compacted records."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "id": 1,
        "start_seq": 2,
        "start_time_ms": 3,
        "end_seq": 16,
        "sealed_us": 17,
        "first_us": 18,
        "last_us": 19,
        "records": 20,
        "bytes": 21,
        "runs": 22,
        "is_compacted": 23,
    }

    id: int
    start_seq: int
    start_time_ms: int | UnsetType = UNSET
    end_seq: int | UnsetType = UNSET
    sealed_us: int | UnsetType = UNSET
    first_us: int | UnsetType = UNSET
    last_us: int | UnsetType = UNSET
    records: int
    bytes: int
    runs: int
    is_compacted: bool


class SegmentsAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """Segments in order; ``more`` means that others follow: ask again from the last one's end."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1, "segments": 2, "more": 16}

    status: str = OK
    segments: list[SegmentListed]
    more: bool = False


class CountRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A count of the records of a key, in a range of sequences."""

    NUMBERS: ClassVar[dict[str, int]] = {"key": 1, "start_seq": 2, "end_seq": 3, "approximate": 16}

    key: JsonBytes | UnsetType = UNSET
    start_seq: Whole | UnsetType = UNSET
    end_seq: EndSequence | UnsetType = UNSET
    approximate: bool | UnsetType = UNSET


class CountAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of records; for an approximate count, also the least and the greatest."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1, "count": 2, "least": 16, "most": 17}

    status: str = OK
    count: int
    least: int | UnsetType = UNSET
    most: int | UnsetType = UNSET


class LogsAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The names of the keyed logs of a server."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1, "logs": 16}

    status: str = OK
    logs: list[str]


class LogAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The description of a keyed log."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "status": 1,
        "name": 16,
        "oldest": 17,
        "next_sequence": 18,
        "compacted": 19,
        "segments": 20,
        "runs": 21,
        "bytes": 22,
        "records_in_runs": 23,
        "loose_fragments": 24,
    }

    status: str = OK
    name: str
    oldest: int
    next_sequence: int
    compacted: int
    segments: int
    runs: int
    bytes: int
    records_in_runs: int
    loose_fragments: int


class HealthAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of a healthy server."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1}

    status: str = OK


class ErrorAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """An error: the message, its kind, whether the change was applied, and the class of error."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "status": 1,
        "message": 2,
        "kind": 16,
        "outcome": 17,
        "error": 18,
    }

    status: str = ERROR
    message: str
    kind: str
    outcome: str
    error: str = "TidelogError"


def encode_json(message: Struct) -> bytes:
    """Encode a message as JSON."""
    return msgspec.json.encode(message)
