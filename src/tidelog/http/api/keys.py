"""Text forms of keys and values: text, base64 and hex."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Final

from msgspec import Meta, Struct

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError

_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_DIGIT: Final = "[A-Za-z0-9+/]"
_PADDED: Final = f"^(?:{_DIGIT}{{4}})*(?:{_DIGIT}{{2}}==|{_DIGIT}{{3}}=)?$"


class Base64(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Bytes in JSON: ``{"base64": "/w=="}``, in the standard alphabet, padded."""

    base64: Annotated[bytes, Meta(extra_json_schema={"pattern": _PADDED})]


# A text stands for its UTF-8 bytes.
JsonBytes = str | Base64


def json_bytes(value: bytes) -> JsonBytes:
    """Return the JSON form of bytes: a text if they are UTF-8, else base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Base64(value)


def plain_bytes(value: JsonBytes) -> bytes:
    """Return the bytes of a text or of base64."""
    return value.encode() if isinstance(value, str) else value.base64


def base64_bytes(text: str, what: str) -> bytes:
    """Decode base64 of either alphabet, with or without padding.

    Raises:
        UsageError: it is not base64; ``what`` names the parameter in the message.
    """
    plain = text.replace("-", "+").replace("_", "/")
    try:
        if _BASE64.fullmatch(plain) is None:
            raise binascii.Error("it contains other characters")
        bare = plain.rstrip("=")
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"{what} is not base64", given=quoted(text), why=str(error)) from error


def hex_bytes(text: str, what: str) -> bytes:
    """Decode hex digits.

    Raises:
        UsageError: the text is not hex.
    """
    if _HEX.fullmatch(text) is None:
        raise UsageError(
            f"{what} is not hex: write two digits (0-9, a-f) per byte", given=quoted(text)
        )
    return bytes.fromhex(text)
