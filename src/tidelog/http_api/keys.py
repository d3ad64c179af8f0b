"""Keys and values as they are written down: base64 in either alphabet, hex, and text."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from tidelog.arguments import quoted
from tidelog.errors import UsageError

_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def base64_bytes(text: str, what: str) -> bytes:
    """Return what base64 of either alphabet says, with or without padding.

    Raises:
        UsageError: it is no base64; ``what`` names where it stands.
    """
    plain = text.replace("-", "+").replace("_", "/")
    try:
        if _BASE64.fullmatch(plain) is None:
            raise binascii.Error("it has other characters")
        bare = plain.rstrip("=")
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{what} is no base64", given=quoted(text), why=str(error)) from error


def hex_bytes(text: str, what: str) -> bytes:
    """Return what hex digits say.

    Raises:
        UsageError: they are none.
    """
    if _HEX.fullmatch(text) is None:
        raise UsageError(f"{what} is no hex: two digits (0-9, a-f) a byte", given=quoted(text))
    return bytes.fromhex(text)


def text_of(value: bytes) -> str | None:
    """Return bytes as text; None where they are no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
