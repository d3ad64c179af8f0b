"""The messages of the HTTP API of keyed logs: the one description of their JSON and protobuf.

In JSON, names are lowerCamelCase, and whole numbers are numbers. A field without a value is
omitted. A key or a value is a text, or ``{"base64": ...}`` if its bytes are not UTF-8. In protobuf,
a field has its `Number`; ``keyed_log.proto`` is made from this module, and so is the OpenAPI
description.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.http.api.keys import JsonBytes

OK: Final = "success"
ERROR: Final = "error"


@dataclass(frozen=True, slots=True)
class Number:
    """The number of a field in protobuf, and a comment on it in ``keyed_log.proto``."""

    number: int
    note: str = ""


# Protobuf must distinguish an absent key from the empty key.
Required = Annotated[JsonBytes, Meta(extra={"is_optional": True})]
# Clients without a limit send 2^64-1.
EndSequence = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": 2**64 - 1})]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
OneUp = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class RecordIn(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A record to append: a key and a value."""

    key: Annotated[Required, Number(1, "Required; the empty key is a key.")]
    value: Annotated[Required, Number(2, "Required.")]


class AppendRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Records to append together, with consecutive sequences."""

    records: Annotated[list[RecordIn], Meta(min_length=1), Number(1)]
    await_durable: Annotated[bool | UnsetType, Number(2, "True if absent.")] = UNSET
    timestamp_us: Annotated[Whole | UnsetType, Number(16)] = UNSET
    timeout_ms: Annotated[
        Whole | UnsetType, Number(17, "The greatest wait for room; 0 by default.")
    ] = UNSET


class AppendAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of appended records, and the sequence of the first."""

    status: Annotated[str, Number(1)] = OK
    records_appended: Annotated[int, Number(2)]
    start_sequence: Annotated[int, Number(3)]


class ScanRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A scan of one key, of a prefix, or of the keys from ``first`` to before ``last``."""

    key: Annotated[
        JsonBytes | UnsetType, Number(1, "Either key, or prefix, or first and last.")
    ] = UNSET
    prefix: Annotated[JsonBytes | UnsetType, Number(16)] = UNSET
    first: Annotated[JsonBytes | UnsetType, Number(17)] = UNSET
    last: Annotated[JsonBytes | UnsetType, Number(18)] = UNSET
    start_seq: Annotated[Whole | UnsetType, Number(2)] = UNSET
    end_seq: Annotated[EndSequence | UnsetType, Number(3)] = UNSET
    limit: Annotated[OneUp | UnsetType, Number(4)] = UNSET
    follow: Annotated[bool | UnsetType, Number(5)] = UNSET
    timeout_ms: Annotated[Whole | UnsetType, Number(6)] = UNSET
    newest_first: Annotated[bool | UnsetType, Number(19)] = UNSET


class ScanValue(Struct, frozen=True, kw_only=True, rename="camel"):
    """A record; ``key`` is present if the scan was for several keys."""

    sequence: Annotated[int, Number(1)]
    value: Annotated[JsonBytes, Number(2)]
    timestamp_us: Annotated[int, Number(16)]
    key: Annotated[
        JsonBytes | UnsetType, Number(17, "Present if the scan is for several keys.")
    ] = UNSET


class ScanAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """Records, and the sequence to resume from; ``more`` means that a limit ended the answer."""

    status: Annotated[str, Number(1)] = OK
    key: Annotated[JsonBytes | UnsetType, Number(2)] = UNSET
    values: Annotated[list[ScanValue], Number(3)]
    next_sequence: Annotated[int, Number(4)]
    more: Annotated[bool, Number(16)] = False


class KeySummary(Struct, frozen=True, kw_only=True, rename="camel"):
    """A key, the number of its records, and its lowest and highest sequence."""

    key: Annotated[JsonBytes, Number(1)]
    records: Annotated[int, Number(16)]
    min_sequence: Annotated[int, Number(17)]
    max_sequence: Annotated[int, Number(18)]


class KeysAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """Keys in the order of their bytes; ``more`` means that other keys follow."""

    status: Annotated[str, Number(1)] = OK
    keys: Annotated[list[KeySummary], Number(2)]
    more: Annotated[bool, Number(16)] = False


class SegmentSummary(Struct, frozen=True, kw_only=True, rename="camel"):
    """A segment; the active one has no end. Its numbers count only compacted records."""

    id: Annotated[int, Number(1)]
    start_seq: Annotated[int, Number(2)]
    start_time_ms: Annotated[int | UnsetType, Number(3)] = UNSET
    end_seq: Annotated[int | UnsetType, Number(16)] = UNSET
    sealed_us: Annotated[int | UnsetType, Number(17)] = UNSET
    first_us: Annotated[int | UnsetType, Number(18)] = UNSET
    last_us: Annotated[int | UnsetType, Number(19)] = UNSET
    records: Annotated[int, Number(20)]
    bytes: Annotated[int, Number(21)]
    runs: Annotated[int, Number(22)]
    is_compacted: Annotated[bool, Number(23)]


class SegmentsAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """Segments in order; ``more`` means that others follow: ask again from the last one's end."""

    status: Annotated[str, Number(1)] = OK
    segments: Annotated[list[SegmentSummary], Number(2)]
    more: Annotated[bool, Number(16)] = False


class CountRequest(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A count of the records of a key, in a range of sequences."""

    key: Annotated[JsonBytes | UnsetType, Number(1)] = UNSET
    start_seq: Annotated[Whole | UnsetType, Number(2)] = UNSET
    end_seq: Annotated[EndSequence | UnsetType, Number(3)] = UNSET
    approximate: Annotated[bool | UnsetType, Number(16)] = UNSET


class CountAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of records; for an approximate count, also the least and the greatest."""

    status: Annotated[str, Number(1)] = OK
    count: Annotated[int, Number(2)]
    least: Annotated[int | UnsetType, Number(16)] = UNSET
    most: Annotated[int | UnsetType, Number(17)] = UNSET


class LogsAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The names of the keyed logs of a server."""

    status: Annotated[str, Number(1)] = OK
    logs: Annotated[list[str], Number(16)]


class LogAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The description of a keyed log."""

    status: Annotated[str, Number(1)] = OK
    name: Annotated[str, Number(16)]
    oldest: Annotated[int, Number(17)]
    next_sequence: Annotated[int, Number(18)]
    compacted: Annotated[int, Number(19)]
    segments: Annotated[int, Number(20)]
    runs: Annotated[int, Number(21)]
    bytes: Annotated[int, Number(22)]
    records_in_runs: Annotated[int, Number(23)]
    loose_fragments: Annotated[int, Number(24)]


class HealthAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of a healthy server."""

    status: Annotated[str, Number(1)] = OK


class ErrorAnswer(Struct, frozen=True, kw_only=True, rename="camel"):
    """An error: the message, its kind, whether the change was applied, and the class of error."""

    status: Annotated[str, Number(1)] = ERROR
    message: Annotated[str, Number(2)]
    kind: Annotated[str, Number(16)]
    outcome: Annotated[str, Number(17)]
    error: Annotated[str, Number(18)] = "TidelogError"


def encode_json(message: Struct) -> bytes:
    """Encode a message as JSON."""
    return msgspec.json.encode(message)
