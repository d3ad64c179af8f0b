"""Records of keyed logs read from lines: JSON objects with a key and a value, or bare values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidelog.cli.keyed.options import read_key
from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.http.api.keys import base64_bytes

Reads = Callable[[list[bytes]], list[tuple[bytes, bytes]]]
_KNOWN = ("key", "key_base64", "value", "value_base64", "sequence", "timestamp_us")


def raw_records(key: bytes) -> Reads:
    """Return a reader that takes each line as a value of ``key``."""
    return lambda lines: [(key, line) for line in lines]


def json_records(key: bytes | None, form: str) -> Reads:
    """Return a reader that takes each line as a JSON object and skips empty lines.

    The reader accepts the output of ``scan``, but ignores its sequences and times: an append
    assigns new ones. If ``key`` is given, it is the key of all lines, and a line must have none.
    """
    seen = 0

    def read(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
        nonlocal seen
        found = []
        for line in lines:
            seen += 1
            if line.strip():
                try:
                    found.append(_record(line, key, form))
                except UsageError as error:
                    raise UsageError(f"line {seen:,}: {error}") from error
        return found

    return read


def _record(line: bytes, key: bytes | None, form: str) -> tuple[bytes, bytes]:
    try:
        told: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}") from error
    if not isinstance(told, dict):
        raise UsageError('not an object such as {"key": "a", "value": "b"}')
    if strange := [name for name in told if name not in _KNOWN]:
        raise UsageError(f"unknown field {quoted(strange[0])}: the fields are key and value")
    value = _bytes(told, "value", "text")
    if key is None:
        return _checked(_bytes(told, "key", form)), value
    if "key" in told or "key_base64" in told:
        raise UsageError("the line has a key, and --key is given: leave one out")
    return key, value


def _checked(key: bytes) -> bytes:
    from tidelog.keyed.values import check_key

    return check_key(key)


def _bytes(told: dict[str, Any], name: str, form: str) -> bytes:
    """Return the bytes of the field ``name`` (written in ``form``) or of ``name_base64``."""
    given = [one for one in (name, f"{name}_base64") if one in told]
    if len(given) != 1:
        missing = f"no {name}" if not given else f"{given[0]} and {given[1]}"
        raise UsageError(f"the line has {missing}: give one of {name} and {name}_base64")
    text = told[given[0]]
    if not isinstance(text, str):
        raise UsageError(
            f'{given[0]} is not text: put it in quotes, as "3", and a backslash before each quote '
            "in it; or give plain values, one per line, with --key"
        )
    if given[0] == name:
        return read_key(text, form, name)
    return base64_bytes(text, given[0])
