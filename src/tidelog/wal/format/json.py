"""The form of wal3's JSON objects: compact, with fields in a fixed order and whole numbers. Pure.

Readers accept fields in any order and ignore unknown ones. A repeated field is an error, as in
wal3.
Source: Chroma's wal3 as written by its own code; see docs/internals/wal3.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from tidelog.core.arguments import check_whole
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, UsageError

U64_MAX: Final = 2**64 - 1
# The closing quote is optional: in a truncated text, each quote would start a search to the end.
_TEXT: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
DEPTH_MAX: Final = 128  # The depth limit of wal3's reader.
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")  # An escaped surrogate, single or in a pair.
CHECK: Final = "check"  # A field of ours: the checksum of an object without this field.


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object, read with type checks.

    Raises:
        CorruptionError: a field is missing or has another type; the error names the object and the
        field.
    """

    where: str
    found: Mapping[str, Any]

    def whole(self, name: str, *, most: int = U64_MAX) -> int:
        """Return a whole number from 0 to ``most``."""
        value = self._value(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(name, f"is not a whole number from 0 to {most}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.found.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "is neither true nor false")
        return value

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            raise self.wrong(name, "is not text")
        return value

    def setsum(self, name: str) -> Setsum:
        try:
            return Setsum.from_hex(self.text(name))
        except CorruptionError as error:
            raise self.wrong(name, "is not a setsum") from error

    def position(self, name: str) -> int:
        """Return a position, which is stored in an object of its own."""
        return self.child(name).whole("offset")

    def child(self, name: str) -> Fields:
        value = self._value(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "is not an object")
        return Fields(f"{self.where}: {name}", value)

    def children(self, name: str) -> list[Fields]:
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(name, "is not a list of objects")
        return [Fields(f"{self.where}: {name}[{n}]", item) for n, item in enumerate(value)]

    def blob(self, name: str) -> bytes:
        """Return bytes, which are stored as base64."""
        return self._blob(name, self.text(name))

    def blobs(self, name: str) -> list[bytes]:
        """Return a list of bytes, each stored as base64."""
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "is not a list of texts")
        return [self._blob(name, item) for item in value]

    def has(self, name: str) -> bool:
        """Return True if an optional field exists and is not null."""
        return self.found.get(name) is not None

    def wrong(self, name: str, why: str) -> CorruptionError:
        return CorruptionError(f"the field {name!r} {why}: restore the object", path=self.where)

    def _blob(self, name: str, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(name, "is not base64") from error

    def _value(self, name: str) -> Any:
        if name not in self.found:
            raise self.wrong(name, "is missing")
        return self.found[name]


def parse(data: bytes, *, where: str) -> Fields:
    """Decode a JSON object.

    Raises:
        CorruptionError: the bytes are not a JSON object, a field is repeated, the object is nested
        deeper than wal3 reads, or a text has a lone surrogate, which cannot be written back.
    """
    try:
        text = data.decode("utf-8")
        # Python's own depth limit depends on the caller's stack: a process might read an object
        # that it cannot write.
        if depth_of(data, least=DEPTH_MAX) > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX}")
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
        if _HALF.search(data) and not _is_whole(found):
            raise ValueError("a text in it has a lone surrogate (half of a UTF-16 pair)")
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            f"the object cannot be read as JSON: restore it ({error})", path=where
        ) from error
    if not isinstance(found, dict):
        raise CorruptionError("the JSON value is not an object: restore it", path=where)
    return Fields(where, found)


def depth_of(data: bytes, *, least: int) -> int:
    """Return how deep arrays and objects are nested; 0 if at most ``least`` brackets open."""
    if data.count(b"[") + data.count(b"{") <= least:
        return 0
    brackets = _TEXT.sub(b"", data).translate(None, delete=_NO_BRACKETS)
    return max(accumulate(1 if byte in b"[{" else -1 for byte in brackets), default=0)


def render(found: Mapping[str, object]) -> bytes:
    """Encode a JSON object with exactly wal3's bytes.

    Raises:
        UsageError: a text has a lone surrogate, which UTF-8 cannot hold.
    """
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise UsageError(
            "a text has a lone surrogate (half of a UTF-16 pair), which cannot be stored: remove "
            "it",
            found=half,
        ) from error


def render_bytes(value: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(value).decode("ascii")


def check_of(found: Mapping[str, object]) -> str:
    """Return the checksum of an object without the field that holds the checksum."""
    return hashlib.blake2b(render(found), digest_size=16).hexdigest()


def position(offset: int) -> dict[str, int]:
    """Return a position in wal3's form.

    Raises:
        UsageError: it is not a valid position, so readers would refuse it.
    """
    check_whole(offset, "a position")
    return {"offset": offset}


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field occurs twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _is_whole(found: object) -> bool:
    """Return True if no text has a lone surrogate."""
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
