"""The messages of the HTTP API of keyed logs; see ``keyed_log.proto``.

In JSON, names are lowerCamelCase and whole numbers are numbers; a field without a value is left
out. A key or a value is a text, or ``{"base64": ...}`` if its bytes are not UTF-8. ``NUMBERS`` has
the number of each field in protobuf.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.http_api.keys import JsonBytes

OK: Final = "success"
ERROR: Final = "error"

# Protobuf must tell an absent key from the empty key.
Required = Annotated[JsonBytes, Meta(extra={"is_optional": True})]
# What clients say that know no end is 2^64-1.
EndSequence = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": 2**64 - 1})]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
OneUp = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class RecordIn(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A record to append: a key and a value."""

    NUMBERS: ClassVar[dict[str, int]] = {"key": 1, "value": 2}

    key: Required
    value: Required


class AppendRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Records to append, which stand together."""

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
    """How many records were appended, and the sequence of the first."""

    NUMBERS: ClassVar[dict[str, int]] = {
        "status": 1,
        "records_appended": 2,
        "start_sequence": 3,
    }

    status: str = OK
    records_appended: int
    start_sequence: int


class ScanRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is to be read: of one key, of a prefix, or of keys from a first to before a last."""

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
    """A record that was read; ``key`` is there where several keys were asked for."""

    NUMBERS: ClassVar[dict[str, int]] = {"sequence": 1, "value": 2, "timestamp_us": 16, "key": 17}

    sequence: int
    value: JsonBytes
    timestamp_us: int
    key: JsonBytes | UnsetType = UNSET


class ScanAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """Records, and where to go on; ``more`` says that a limit ended it, not the log."""

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
    """A key, how many records it has, and between which sequences they are."""

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
    """Keys in order of their bytes; ``more`` says that others follow after the last."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1, "keys": 2, "more": 16}

    status: str = OK
    keys: list[KeyListed]
    more: bool = False


class SegmentListed(Struct, frozen=True, kw_only=True, rename="camel"):
    """A segment; the active one has no end. Its numbers are of what is compacted."""

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
    """Segments in order; ``more`` says that others follow: ask from the last one's end on."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1, "segments": 2, "more": 16}

    status: str = OK
    segments: list[SegmentListed]
    more: bool = False


class CountRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Of which key the records are to be counted, and between which sequences."""

    NUMBERS: ClassVar[dict[str, int]] = {"key": 1, "start_seq": 2, "end_seq": 3, "approximate": 16}

    key: JsonBytes | UnsetType = UNSET
    start_seq: Whole | UnsetType = UNSET
    end_seq: EndSequence | UnsetType = UNSET
    approximate: bool | UnsetType = UNSET


class CountAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many records there are; of an approximate count, at least and at most."""

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
    """What there is to know of a keyed log."""

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
    """Whether the server is well."""

    NUMBERS: ClassVar[dict[str, int]] = {"status": 1}

    status: str = OK


class ErrorAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """What went wrong, whether the change happened, and which error of tidelog's it is."""

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
    """Return a message as JSON."""
    return msgspec.json.encode(message)
