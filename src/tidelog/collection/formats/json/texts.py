"""Columns of json text: the unchanged text of a field's value, of any json type. Pure.

The parser returns the raw text of values: numbers keep their digits, and objects keep the order of
their fields. It is strict: a line that is not valid json, for example with NaN, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelog.collection.formats.names import match_names
from tidelog.collection.formats.types import is_json
from tidelog.errors import UsageError

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Strings, with the colon after those that are names, and brackets.
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"(\s*:)?|[{}\[\]]')
_NULL: Final = b"null"
_WIDE: Final = re.compile(rb"[0-9][eE]\+?[0-9]{2}")  # A number that may exceed a double.
# Names with these characters cannot be the names of msgspec fields.
UNNAMEABLE: Final = re.compile(r'["\\\x00-\x1f]')


class FieldTexts:
    """Reads some fields of lines as text. It refuses a line that has one of these fields twice."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        # Most writers do not escape a name. Some escape characters without need, as Python does
        # for all that are not ASCII. An escaped character has at most 12 bytes (two surrogates), so
        # a name of N characters ends at most 12 * N bytes after its first escape.
        longest = 12 * max(map(len, names), default=0)
        self._escaped = re.compile(rb'\\[^"\n]{0,%d}"[ \t\r]*:' % longest)
        self._tokens = [msgspec.json.encode(name) for name in names]
        self._places = [f"f{number}" for number in range(len(names))]
        fields = [(place, msgspec.Raw, None) for place in self._places]
        line: Any = msgspec.defstruct(
            "Line", fields, rename=dict(zip(self._places, names, strict=True))
        )
        self._decoder = msgspec.json.Decoder(line)

    def check(self, line: bytes) -> None:
        """Raise an error if a line's fields cannot be read as text."""
        if self.read(line, 1) is None:
            raise ValueError("the line has no json values")

    def refuses(self, line: bytes) -> bool:
        """Return True if a line is not strict json. `read` may refuse other lines too."""
        try:
            self._decoder.decode_lines(line)
        except msgspec.MsgspecError:
            return True
        except RecursionError:
            return False
        return False

    def read(self, chunk: bytes, rows: int) -> list[pa.Array[Any]] | None:
        """Return a column of ``rows`` values for each name; None if a line is refused."""
        try:
            lines = self._decoder.decode_lines(chunk)
        except (msgspec.MsgspecError, RecursionError):
            return None
        if len(lines) != rows:
            return None
        columns: list[pa.Array[Any]] = []
        is_escaped = self._escaped.search(chunk) is not None
        for place, token in zip(self._places, self._tokens, strict=True):
            found = [getattr(line, place) for line in lines]
            there = rows - found.count(None)
            if (is_escaped or chunk.count(token) > there) and self._has_twin(chunk, token):
                return None
            texts = [None if raw is None else bytes(raw) for raw in found]
            kept = [None if text == _NULL else text for text in texts]
            columns.append(pa.array(kept, pa.binary()).cast(pa.string()))
        return columns

    def _has_twin(self, chunk: bytes, token: bytes) -> bool:
        """Return True if some line has a top-level field twice."""
        name = json.loads(token)
        lines = chunk.split(b"\n")
        doubtful = [one for one in lines if one.count(token) > 1 or self._escaped.search(one)]
        return any(_names(line).count(name) > 1 for line in doubtful)


@lru_cache(maxsize=16)
def field_texts(names: tuple[str, ...]) -> FieldTexts:
    """Return a cached reader of some fields: creating one costs more than reading a small range."""
    return FieldTexts(names)


def without_wide(chunk: bytes, names: Sequence[str]) -> bytes:
    """Return lines; those with a number that may exceed a double keep only the fields of ``names``.

    Arrow's reader refuses such a number even in a field that it ignores.
    """
    return b"\n".join(
        _narrowed(line, names) if _WIDE.search(line) else line for line in chunk.split(b"\n")
    )


def _narrowed(line: bytes, names: Sequence[str]) -> bytes:
    try:
        found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        is_plain = len(_names(line)) == len(found)  # False if a field occurs twice.
    except (ValueError, RecursionError):
        return line
    kept = msgspec.json.encode({name: found[name] for name in names if name in found})
    return kept if is_plain and not _WIDE.search(kept) else line


def fold_names(lines: Sequence[bytes], wanted: Sequence[str]) -> list[bytes]:
    """Return lines with the names of top-level fields in the spelling of ``wanted``."""
    known = {name.casefold() for name in wanted}
    plain = {*wanted}

    def is_plain(line: bytes) -> bool:
        try:
            names = _FIELDS.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            return False
        plain.update(name for name in names if name.casefold() not in known)
        return plain.issuperset(names)

    return [line if is_plain(line) else _respelled(line, wanted) for line in lines]


def _respelled(line: bytes, wanted: Sequence[str]) -> bytes:
    spans = list(_name_spans(line))
    try:
        names = [json.loads(line[start:end]) for start, end in spans]
    except ValueError:
        return line
    found, at = b"", 0
    for (start, end), name, own in zip(spans, names, match_names(names, wanted), strict=True):
        if own != name:
            found += line[at:start] + msgspec.json.encode(own)
            at = end
    return found + line[at:]


def _name_spans(line: bytes) -> Iterator[tuple[int, int]]:
    """Yield the span of each top-level field's name in a line, with its quotes."""
    depth = 0
    for token in _TOKENS.finditer(line):
        sign = token.group()[:1]
        if sign != b'"':
            depth += 1 if sign in b"{[" else -1
        elif depth == 1 and token.group(1) is not None:
            yield token.start(), token.start() + len(token.group().rstrip(b": \t\r\n"))


def _names(line: bytes) -> list[str]:
    """Return the names of an object's top-level fields, in order, with repetitions."""
    found: list[list[str]] = []

    def pairs(items: list[tuple[str, Any]]) -> None:
        found.append([name for name, _ in items])  # The outermost object comes last.

    json.loads(line, object_pairs_hook=pairs, parse_int=float)
    return found[-1]


def check_json_name(field: pa.Field[Any]) -> None:
    """Check that the parser of json lines can find a column of json text by its name.

    Raises:
        UsageError: the name has a character that the parser cannot handle.
    """
    if is_json(field) and UNNAMEABLE.search(field.name):
        raise UsageError(
            f"the column {field.name!r} cannot have the type JSON, because its name has a quote, "
            "a backslash or a control character: give it another type with schema="
        )
