"""The storage keys of OpenData's log, for data that moves from or to SlateDB.

tidelog itself stores keys as a column and does not need this module. All storage keys here sort,
byte by byte, in the order of (segment, key, sequence).

Shape: ``03 01``, the segment (u32, big-endian), a tag; then, by tag:
    ``10``: an entry: the key, escaped and terminated, and the sequence relative to the segment's
        first, as a number whose bytes sort like the number.
    ``40``: a key of the segment, unescaped.
    ``20`` (segment 0): the block of sequences last assigned.
    ``30`` (segment 0): a segment: its number (u32).
    The RFC's first draft used ``01 01``, the key's bytes, the sequence (u64). There, nothing marks
        the end of the key.
Escapes: ``00`` becomes ``01 01`` and ``01`` becomes ``01 02``; other bytes stay; the terminator is
``00``. So no key is a prefix of another key's entries. ``ff`` is not escaped, although one text of
the RFC escapes it: ``01 03`` sorts before ``61``, while ``ff`` sorts after it. That escape was
meant to keep ``ff`` free for the end of a range. The end of a range is instead found by adding one
to the last byte.
Numbers: the upper half of the first byte is the number of further bytes, from 0 to 8; all other
bits are the number, big-endian.
Source: rfc-0001, "Key encoding"; OpenData's log as of its version 1.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.keyed.values import prefix_limit

SUBSYSTEM: Final = 3
VERSION: Final = 1
ENTRY: Final = 0x10
SEQUENCE_BLOCK: Final = 0x20
SEGMENT: Final = 0x30
LISTING: Final = 0x40
SYSTEM_SEGMENT: Final = 0
_HEAD: Final = bytes([SUBSYSTEM, VERSION])
_HEAD_BYTES: Final = 7
_DRAFT: Final = bytes([1, 1])
_ESCAPED: Final = re.compile(b"[\x00\x01]")
_ESCAPES: Final = re.compile(b"\x01(.?)", re.DOTALL)
_BYTES: Final = {b"\x01": b"\x00", b"\x02": b"\x01"}
_NUMBER_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class EntryKey:
    """A decoded storage key of an entry; ``relative`` is its sequence minus the segment's first."""

    segment: int
    key: bytes
    relative: int


def encode_entry(segment: int, key: bytes, relative: int) -> bytes:
    """Return the storage key of a record.

    Raises:
        UsageError: a number does not fit into u32 or u64.
    """
    return _head(segment, ENTRY) + escape_key(key) + encode_number(relative)


def decode_entry(data: bytes) -> EntryKey:
    """Decode the storage key of a record. Raises: UsageError: it is not one."""
    segment = _segment_of(data, ENTRY)
    key, at = unescape_key(data, _HEAD_BYTES)
    relative, at = decode_number(data, at)
    if at != len(data):
        raise _no_key(data)
    return EntryKey(segment, key, relative)


def entry_range(segment: int, key: bytes) -> tuple[bytes, bytes]:
    """Return the range ``[first, limit)`` of the storage keys of all records of a key."""
    return _range_of(_head(segment, ENTRY) + escape_key(key))


def entry_prefix_range(segment: int, prefix: bytes) -> tuple[bytes, bytes]:
    """Return the range of the storage keys of all records whose key begins with a prefix."""
    return _range_of(_head(segment, ENTRY) + escape_key(prefix)[:-1])


def encode_listing(segment: int, key: bytes) -> bytes:
    """Return the storage key that lists a key of a segment."""
    return _head(segment, LISTING) + key


def decode_listing(data: bytes) -> tuple[int, bytes]:
    """Return a segment and a key that it has. Raises: UsageError: it is not a listing key."""
    return _segment_of(data, LISTING), data[_HEAD_BYTES:]


def encode_segment(segment: int) -> bytes:
    """Return the storage key for the first sequence and time of a segment."""
    return _head(SYSTEM_SEGMENT, SEGMENT) + _u32(segment)


def encode_sequence_block() -> bytes:
    """Return the storage key of the block of sequences that was assigned last."""
    return _head(SYSTEM_SEGMENT, SEQUENCE_BLOCK)


def encode_draft(key: bytes, sequence: int) -> bytes:
    """Return a record's storage key in the format of the RFC's first draft."""
    return _DRAFT + key + _checked(sequence, _NUMBER_MAX).to_bytes(8, "big")


def decode_draft(data: bytes) -> tuple[bytes, int]:
    """Return the key and sequence of a draft key. Raises: UsageError: it is not a draft key."""
    if len(data) < 10 or data[:2] != _DRAFT:
        raise _no_key(data)
    return data[2:-8], int.from_bytes(data[-8:], "big")


def escape_key(key: bytes) -> bytes:
    """Return a key as bytes that sort in the same order and mark its end."""
    return _ESCAPED.sub(lambda found: bytes([1, found[0][0] + 1]), key) + b"\0"


def unescape_key(data: bytes, at: int = 0) -> tuple[bytes, int]:
    """Return the key at an offset, and its end. Raises: UsageError: it is not a key."""
    limit = data.find(b"\0", at)
    escaped = data[at:limit]
    if limit < 0 or any(found not in _BYTES for found in _ESCAPES.findall(escaped)):
        raise _no_key(data)
    return _ESCAPES.sub(lambda found: _BYTES[found[1]], escaped), limit + 1


def encode_number(number: int) -> bytes:
    """Return a u64 as bytes that sort like the number; small numbers are short."""
    more = (_checked(number, _NUMBER_MAX).bit_length() + 3) // 8
    return bytes([more << 4 | number >> 8 * more]) + (number % (1 << 8 * more)).to_bytes(
        more, "big"
    )


def decode_number(data: bytes, at: int = 0) -> tuple[int, int]:
    """Return the number at an offset, and its end. Raises: UsageError: it is not a number."""
    limit = at + 1 + (data[at] >> 4 if at < len(data) else 0)
    if at >= len(data) or limit > len(data):
        raise _no_key(data)
    number = int.from_bytes(bytes([data[at] & 15]) + data[at + 1 : limit], "big")
    # Each number has exactly one encoding; otherwise one key could have two encodings.
    if number > _NUMBER_MAX or encode_number(number) != data[at:limit]:
        raise _no_key(data)
    return number, limit


def _head(segment: int, tag: int) -> bytes:
    return _HEAD + _u32(segment) + bytes([tag])


def _segment_of(data: bytes, tag: int) -> int:
    if len(data) < _HEAD_BYTES or data[:2] != _HEAD or data[6] != tag:
        raise _no_key(data)
    return int.from_bytes(data[2:6], "big")


def _range_of(prefix: bytes) -> tuple[bytes, bytes]:
    limit = prefix_limit(prefix)
    assert limit is not None, "it begins with 03"
    return prefix, limit


def _u32(number: int) -> bytes:
    return _checked(number, 2**32 - 1).to_bytes(4, "big")


def _checked(number: int, most: int) -> int:
    if type(number) is not int or not 0 <= number <= most:
        raise UsageError(f"the number must be from 0 to {most}", given=quoted(number))
    return number


def _no_key(data: bytes) -> UsageError:
    return UsageError("the bytes are not a storage key of that kind", given=data[:64].hex())
