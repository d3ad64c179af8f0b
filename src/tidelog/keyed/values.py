"""Values of keyed logs: queries, settings, segments, counts, checkpoints. Pure.

Python, the command line, HTTP and Spark parse their arguments into these values. An invalid value
raises an error when it is made, before any request to the store.
Source: rfc-0001, "Count API"; design page 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidelog.core.arguments import check_kind, quoted
from tidelog.errors import UsageError
from tidelog.keyed.format.records import KEYED_RECORDS as _RECORDS
from tidelog.wal.format.fragment_sets import check_key as key_checked

SEQUENCE_MAX: Final = 2**63 - 1
MEMORY: Final = "memory"
DURABLE: Final = "durable"
KEYED_RECORDS: Final = _RECORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """The rules for sealing segments: at a size, at an age, or (None, None) only by a call.

    Units: ``bytes`` of stored data; ``age_us`` since the oldest record. Segments are sealed by
        compaction: the background maintenance of a writer, after some appends, or `compact`.
    """

    bytes: int | None = 1024 * 1024 * 1024
    age_us: int | None = None

    def __post_init__(self) -> None:
        for name in ("bytes", "age_us"):
            if getattr(self, name) is not None:
                _check_from_one(getattr(self, name), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The least that is kept; older sealed segments are retired as a whole.

    Units: records younger than ``age_us`` are kept, so a segment is retired once it was sealed that
        long ago and all its records are older. The newest segments with ``bytes`` of stored data in
        total are kept. The newest ``segments``, including the active one, are kept. The active
        segment is never retired. A segment is retired if any of the settings allows it, by `retire`
        or by the maintenance of a writer.
    """

    age_us: int | None = None
    bytes: int | None = None
    segments: int | None = None

    def __post_init__(self) -> None:
        for name in ("age_us", "bytes", "segments"):
            if getattr(self, name) is not None:
                _check_from_one(getattr(self, name), name)

    @property
    def is_set(self) -> bool:
        return (self.age_us, self.bytes, self.segments) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A window of sequences over all keys, ``[start, limit)``; the active one has no ``limit``.

    ``records`` and ``bytes`` are those of its runs, without records that are not compacted yet.
    ``first_us`` is the least time of its compacted records, or None.
    """

    id: int
    start: int
    limit: int | None
    sealed_us: int | None
    first_us: int | None
    last_us: int | None
    records: int
    bytes: int
    runs: int
    is_compacted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of records between ``least`` and ``most``, inclusive; ``value`` is between them."""

    value: int
    least: int
    most: int

    @property
    def is_exact(self) -> bool:
        return self.least == self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A named frontier whose records ``[oldest, next_sequence)`` stay readable."""

    name: str
    oldest: int
    next_sequence: int
    made_us: int
    fork: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedInfo:
    """A description of a keyed log.

    Units: ``oldest`` is the first readable sequence, ``next_sequence`` the next to be assigned. All
        records before ``compacted`` are in runs. ``bytes`` is the size of runs and directories.
    """

    name: str
    oldest: int
    next_sequence: int
    compacted: int
    segments: int
    runs: int
    bytes: int
    records_in_runs: int
    loose_fragments: int
    sealing: Sealing
    retention: Retention
    checkpoints: tuple[CheckpointInfo, ...]


def _check_from_one(value: object, what: str) -> None:
    if type(value) is not int or value < 1:
        raise UsageError(
            f"{what} must be a whole number (int) of at least 1, or None", found=quoted(value)
        )


def check_key(key: object) -> bytes:
    """Return the key if it is valid.

    Raises:
        UsageError: it is not bytes, or is too long. The empty key is valid.
    """
    key_checked(key)
    assert isinstance(key, bytes)
    return key


def check_sequences(start: int, limit: int | None = None) -> None:
    """Refuse values that are not a range of sequences ``[start, limit)``.

    Raises:
        UsageError: one is not a whole number from 0 to 2^63-1, or the range is reversed.
    """
    for name, value in (("start", start), ("limit", limit)):
        if value is None and name == "limit":
            continue
        if type(value) is not int or not 0 <= value <= SEQUENCE_MAX:
            raise UsageError(
                f"{name} must be a sequence: a whole number (int) from 0 to 2^63-1",
                given=quoted(value),
            )
    if limit is not None and limit < start:
        raise UsageError(
            "the range of sequences is reversed: limit must not be below start",
            start=start,
            limit=limit,
        )


def check_rows(rows: int | None) -> None:
    """Refuse a value that is not a positive number of records, or None.

    Raises:
        UsageError: it is not.
    """
    if rows is not None:
        _check_from_one(rows, "rows")
        if rows > SEQUENCE_MAX:
            raise UsageError("rows must be at most 2^63-1, or None for all", found=rows)


def check_settings(sealing: object, retention: object) -> None:
    """Refuse values that are not settings.

    Raises:
        UsageError: a value has another type.
    """
    if sealing is not None:
        check_kind(sealing, Sealing, "sealing must be a tidelog.Sealing")
    if retention is not None:
        check_kind(retention, Retention, "retention must be a tidelog.Retention")


def check_retention(sealing: Sealing, retention: Retention) -> None:
    """Refuse a retention by age that can never act: only sealed segments are retired.

    Raises:
        UsageError: segments are not sealed by age, or only after the retention.
    """
    age_us = retention.age_us
    if age_us is None or (sealing.bytes, sealing.age_us) == (None, None):  # Sealed only by a call.
        return
    if sealing.age_us is None or sealing.age_us > age_us:
        raise UsageError(
            "retention deletes only sealed segments, so records older than the age of retention "
            "would stay in an unsealed one: set Sealing(age_us=) to at most the age of retention",
            sealing_age_us=sealing.age_us,
            retention_age_us=age_us,
        )


def check_segments(segments: object) -> None:
    """Refuse a value that is not a range of segment ids ``(first, last)``; last may be None.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(segments, tuple) or len(segments) != 2:
        raise UsageError(
            "segments must be (first, last): two ids, the last one exclusive, or None for no end",
            given=quoted(segments),
        )


def prefix_limit(prefix: bytes) -> bytes | None:
    """Return the least key after all keys that begin with a prefix; None if none exists."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def records_table(records: Sequence[tuple[bytes, bytes]]) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Return the keys and the values of pairs, as arrays.

    Raises:
        UsageError: the value is not a list of pairs of bytes.
    """
    given: object = records
    if isinstance(given, bytes | str) or not isinstance(given, Sequence):
        raise UsageError("append takes a list of (key, value), both bytes")
    try:
        keys, values = zip(*records, strict=True) if records else ((), ())
        if not {*map(type, keys), *map(type, values)} <= {bytes}:
            raise TypeError("a key or a value has another type")  # Arrow would accept texts.
        return pa.array(keys, pa.binary()), pa.array(values, pa.binary())
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise UsageError(
            "append takes a list of (key, value), both bytes: encode texts first", why=str(error)
        ) from error


_NAMES: Final = ("key", "prefix", "from_key and to_key")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys to read: one key, a prefix, a range, or all keys.

    Shape: the keys ``[from_key, to_key)`` in the order of their bytes; ``to_key`` None has no end.
        ``key`` is set by `one`, and a scan of one key reads only the objects with that key.

    Raises:
        UsageError: a value is not a key, or the range is reversed.
    """

    from_key: bytes = b""
    to_key: bytes | None = None
    key: bytes | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            if (self.from_key, self.to_key) != (self.key, check_key(self.key) + b"\0"):
                raise UsageError("a key and a range exclude each other: use Keys.one(key)")
            return
        check_key(self.from_key)
        if self.to_key is not None and check_key(self.to_key) < self.from_key:
            raise UsageError(
                "the range of keys is reversed: it must begin at or before its end",
                begin=quoted(self.from_key),
                end=quoted(self.to_key),
            )

    @classmethod
    def one(cls, key: bytes) -> Keys:
        """Return the choice of one key; b"" is the empty key."""
        # The smallest key after a key is that key plus a zero byte.
        return cls(key, check_key(key) + b"\0", key)

    @classmethod
    def prefix(cls, prefix: bytes) -> Keys:
        """Return the choice of all keys that begin with a prefix."""
        return cls(prefix, prefix_limit(check_key(prefix)))

    @classmethod
    def between(cls, from_key: bytes | None, to_key: bytes | None) -> Keys:
        """Return the choice of the keys ``[from_key, to_key)``; None leaves that side open."""
        return cls(b"" if from_key is None else from_key, to_key)

    @classmethod
    def all(cls) -> Keys:
        """Return the choice of all keys."""
        return cls()

    @classmethod
    def of(cls, given: Keys | bytes) -> Keys:
        """Return the choice itself, or the choice of one key if bytes are given."""
        return given if isinstance(given, Keys) else cls.one(given)

    def contains(self, key: bytes) -> bool:
        """Return True if the choice has this key."""
        return self.from_key <= key and (self.to_key is None or key < self.to_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedQuery:
    """A read: the records of some keys with sequences ``[start, limit)``, at most ``rows``.

    Raises:
        UsageError: a value is not valid, or the range of sequences is reversed.
    """

    keys: Keys
    start: int = 0
    limit: int | None = None
    rows: int | None = None
    newest_first: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.keys, Keys):
            raise UsageError(f"keys must be a tidelog.Keys, not {type(self.keys).__name__}")
        check_sequences(self.start, self.limit)
        check_rows(self.rows)


def chosen_keys(
    *,
    key: bytes | None = None,
    prefix: bytes | None = None,
    from_key: bytes | None = None,
    to_key: bytes | None = None,
    names: tuple[str, str, str] = _NAMES,
) -> Keys:
    """Return the keys that the parameters of a command, a request or a source choose.

    Without a parameter, it returns all keys. ``names`` are the names of the key, the prefix and
    the range in errors.

    Raises:
        UsageError: a value is not a key, the range is reversed, or two choices are given.
    """
    is_range = from_key is not None or to_key is not None
    choices = zip(names, (key is not None, prefix is not None, is_range), strict=True)
    given = [name for name, is_given in choices if is_given]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other: pass one")
    if key is not None:
        return Keys.one(key)
    if prefix is not None:
        return Keys.prefix(prefix)
    return Keys.between(from_key, to_key)
