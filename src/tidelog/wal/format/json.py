"""The form of wal3's JSON objects: compact, fields in a fixed order, numbers whole. Pure.

Readers take fields in any order and ignore those they do not know; a field that comes twice is an
error, as it is to wal3.
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
from typing import Any, Final

from tidelog.arguments import check_whole
from tidelog.errors import CorruptionError, UsageError
from tidelog.json_depth import depth_of
from tidelog.setsum import Setsum

U64_MAX: Final = 2**64 - 1
DEPTH_MAX: Final = 128  # What wal3's own reader goes down to.
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")  # An escape of half a character, or of two.
CHECK: Final = "check"  # A field of our own: the sum of an object without it.


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object, taken out with their types checked.

    Raises:
        CorruptionError: by each method, where a field is missing or of another type; it names the
            object in the store and the field.
    """

    where: str
    found: Mapping[str, Any]

    def whole(self, name: str, *, most: int = U64_MAX) -> int:
        """Return a number from 0 to ``most``."""
        value = self._value(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.wrong(name, f"is no whole number from 0 to {most}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.found.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "is neither true nor false")
        return value

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            raise self.wrong(name, "is no text")
        return value

    def setsum(self, name: str) -> Setsum:
        try:
            return Setsum.from_hex(self.text(name))
        except CorruptionError as error:
            raise self.wrong(name, "is no setsum") from error

    def position(self, name: str) -> int:
        """Return a position, which stands in an object of its own."""
        return self.child(name).whole("offset")

    def child(self, name: str) -> Fields:
        value = self._value(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "is no object")
        return Fields(f"{self.where}: {name}", value)

    def children(self, name: str) -> list[Fields]:
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(name, "is no list of objects")
        return [Fields(f"{self.where}: {name}[{n}]", item) for n, item in enumerate(value)]

    def blob(self, name: str) -> bytes:
        """Return bytes, which stand as base64."""
        return self._blob(name, self.text(name))

    def blobs(self, name: str) -> list[bytes]:
        """Return a list of them."""
        value = self._value(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "is no list of texts")
        return [self._blob(name, item) for item in value]

    def has(self, name: str) -> bool:
        """Say whether an optional field is there; null is not."""
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
    """Read a JSON object.

    Raises:
        CorruptionError: it is none, or a field comes twice in it, or it is nested deeper than wal3
            reads, or a text in it has half a character, which could not be written back.
    """
    try:
        text = data.decode("utf-8")
        # Python's own limit depends on its caller, so an object might be read and not be written.
        if depth_of(data, least=DEPTH_MAX) > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX}")
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
        if _HALF.search(data) and not _is_whole(found):
            raise ValueError("a text in it has half a character")
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            f"this is no JSON object: restore it ({error})", path=where
        ) from error
    if not isinstance(found, dict):
        raise CorruptionError("this is no JSON object: restore it", path=where)
    return Fields(where, found)


def render(found: Mapping[str, Any]) -> bytes:
    """Write a JSON object as wal3 does, to the byte.

    Raises:
        UsageError: a text in it has half a character, which no file can have.
    """
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise UsageError(
            "a text has half a character, and cannot be stored: leave it out", found=half
        ) from error


def render_bytes(value: bytes) -> str:
    """Write bytes as text."""
    return base64.b64encode(value).decode("ascii")


def check_of(found: Mapping[str, Any]) -> str:
    """Return a checksum of an object without the field that will hold it."""
    return hashlib.blake2b(render(found), digest_size=16).hexdigest()


def position(offset: int) -> dict[str, int]:
    """Return a position as wal3 writes it.

    Raises:
        UsageError: it is none; nobody could read it again.
    """
    check_whole(offset, "a position")
    return {"offset": offset}


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field comes twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _is_whole(found: Any) -> bool:
    """Say whether all texts can be written back."""
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
