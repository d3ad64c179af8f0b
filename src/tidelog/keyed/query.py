"""Queries of a keyed log: the keys to read, the sequences, and the number of records. Pure.

Python, the command line, HTTP and Spark parse their arguments into these values. An invalid value
raises an error when it is made, before any request to the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import check_kind, quoted
from tidelog.errors import UsageError
from tidelog.keyed.values import check_key, check_rows, check_sequences, prefix_limit

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
        check_kind(self.keys, Keys, "keys must be a tidelog.Keys")
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
        raise UsageError(f"{given[0]} and {given[1]} exclude each other: give one")
    if key is not None:
        return Keys.one(key)
    if prefix is not None:
        return Keys.prefix(prefix)
    return Keys.between(from_key, to_key)
