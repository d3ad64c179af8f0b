"""Setsums: checksums of multisets, independent of order and grouping.

A setsum has eight columns; column i is an integer modulo a prime just below 2^32. An item's columns
are its 256-bit hash, read as eight little-endian numbers of 32 bits. Adding items or sums adds
their columns; subtraction is the inverse. So ``setsum == collected + sum(fragments)`` can be
maintained without reading a fragment twice.

The hash of items is SHA3-256 in logs of wal3's form, and by default. Logs of slot commits use
SHA-256, which processors accelerate. Sums of different hashes are not comparable, so a reader of a
sum must know its hash.

Invariants: columns are canonical, each less than its prime; so equal sums have equal digests.
Source: wal3 seed 000, "Setsum"; bytes as in the crate ``setsum`` since version 0.5.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import add, lt, mod, neg, sub
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from tidelog.errors import CorruptionError, UsageError

PRIMES = (
    4294967291,
    4294967279,
    4294967231,
    4294967197,
    4294967189,
    4294967161,
    4294967143,
    4294967111,
)

ItemHash: TypeAlias = Literal["sha3_256", "sha256"]
SHA3_256: Final = "sha3_256"
SHA_256: Final = "sha256"
_HASHES: Final[Mapping[ItemHash, Callable[[bytes], Any]]] = {
    SHA3_256: hashlib.sha3_256,
    SHA_256: hashlib.sha256,
}

_ITEMS_AT_ONCE: Final = 65_536

_COLUMNS = struct.Struct("<8I")
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_PLACE = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Setsum:
    """The sum of a multiset of byte strings."""

    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        if not _is_canonical(self.columns):
            raise UsageError(
                "a setsum must have eight columns, each at least 0 and less than its prime",
                columns=self.columns,
            )

    @classmethod
    def zero(cls) -> Setsum:
        """Return the sum of no items."""
        return _ZERO

    @classmethod
    def of(cls, item: bytes) -> Setsum:
        """Return the sum of one item, hashed by SHA3-256."""
        return cls.of_pieces((item,))

    @classmethod
    def of_pieces(cls, pieces: Iterable[bytes]) -> Setsum:
        """Return the sum of one item that is given in pieces."""
        sha3 = hashlib.sha3_256()
        for piece in pieces:
            sha3.update(piece)
        return _reduced(_COLUMNS.unpack(sha3.digest()))

    @classmethod
    def from_hex(cls, text: str) -> Setsum:
        """Decode the text of `hex`; upper case is valid too.

        Raises:
            CorruptionError: it is not 64 hex digits, or a column is not less than its prime. Some
                programs accept such columns from JSON. Reducing them here would change the sum,
                and it would no longer match the object that it describes.
        """
        if not _HEX.fullmatch(text):
            raise CorruptionError("a setsum must have 64 hex digits", found=repr(text))
        columns = _COLUMNS.unpack(bytes.fromhex(text))
        if not _is_canonical(columns):
            raise CorruptionError("a column of this setsum is not less than its prime", found=text)
        return cls(columns)

    def hex(self) -> str:
        """Return 64 lower-case hex digits."""
        return self.digest().hex()

    def digest(self) -> bytes:
        """Return 32 bytes: the columns, each of 32 bits, little endian."""
        return _COLUMNS.pack(*self.columns)

    def __add__(self, other: Setsum) -> Setsum:
        return _reduced(map(add, self.columns, other.columns))

    def __neg__(self) -> Setsum:
        return _reduced(map(neg, self.columns))

    def __sub__(self, other: Setsum) -> Setsum:
        return _reduced(map(sub, self.columns, other.columns))

    def __str__(self) -> str:
        return self.hex()


def setsum_of(items: Iterable[bytes], *, item_hash: ItemHash = SHA3_256) -> Setsum:
    """Return the sum of many items; an item that occurs twice counts twice."""
    hashed, left = _HASHES[item_hash], iter(items)
    total = np.zeros(len(PRIMES), dtype=np.uint64)
    # In pieces: the digests of millions of small items would need more memory than the items.
    while digests := b"".join([hashed(item).digest() for item in islice(left, _ITEMS_AT_ONCE)]):
        columns = np.frombuffer(digests, "<u4").reshape(-1, len(PRIMES))
        total += columns.sum(axis=0, dtype=np.uint64)
    return _reduced(total.tolist())


def record_setsum(position: int, timestamp_us: int, body: bytes) -> Setsum:
    """Return the sum of one record of a log in wal3's form; see `record_item`.

    Raises:
        UsageError: the position or the time is not from 0 to 2^64-1.
    """
    return Setsum.of(record_item(position, timestamp_us, body))


def record_item(position: int, timestamp_us: int, body: bytes) -> bytes:
    """Return the item of a record: position and time, 8 bytes each, big endian; then the body.

    For many records, ``setsum_of`` of their items is much faster than the sum of their sums.

    Raises:
        UsageError: the position or the time is not from 0 to 2^64-1.
    """
    try:
        return _PLACE.pack(position, timestamp_us) + body
    except struct.error as error:
        raise UsageError(
            "a record's position and time must be from 0 to 2^64-1",
            position=position,
            timestamp_us=timestamp_us,
        ) from error


def _reduced(columns: Iterable[int]) -> Setsum:
    made = object.__new__(Setsum)  # These columns are canonical, so nothing is left to check.
    object.__setattr__(made, "columns", tuple(map(mod, columns, PRIMES)))
    return made


def _is_canonical(columns: tuple[int, ...]) -> bool:
    return len(columns) == len(PRIMES) and min(columns) >= 0 and all(map(lt, columns, PRIMES))


_ZERO = Setsum((0,) * len(PRIMES))
