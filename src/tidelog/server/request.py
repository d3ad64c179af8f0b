"""Requests for handlers: parameters are checked, and bodies are limited."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct

from tidelog.core.arguments import quoted
from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.http.api.failures import BodyTooLarge, BodyTooSlow, WrongMediaType
from tidelog.http.api.keys import base64_bytes, hex_bytes
from tidelog.http.api.protobuf_wire import decode_message
from tidelog.server.limits import BYTES_A_SECOND_MIN, SECOND_US, Allowance, ServerLimits

T = TypeVar("T", bound=Struct)

JSON_TYPES: Final = ("application/json", "application/protobuf+json")
# curl's default type for a body, and a request without a type.
UNTYPED: Final = ("", "application/x-www-form-urlencoded")
PROTOBUF_TYPES: Final = ("application/protobuf", "application/x-protobuf")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_FLAGS: Final = {"true": True, "false": False}
_HERE_BYTES_MAX: Final = 65_536  # A thread decodes larger bodies, so that the loop stays free.
_NAMES_MAX: Final = 100


class ClientGone(Exception):
    """The client has closed the connection."""


class Query:
    """The query parameters of a request: known names, each given once."""

    def __init__(self, query: bytes, known: Iterable[str]) -> None:
        names = tuple(known)
        self._given: dict[str, bytes] = {}
        # The library's parser would replace bytes that are not UTF-8.
        for pair in query.replace(b"+", b" ").split(b"&", _NAMES_MAX) if query else ():
            raw, _, value = pair.partition(b"=")
            name = unquote_to_bytes(raw).decode("utf-8", "backslashreplace")
            if name not in names:
                raise UsageError(
                    f"this route has no parameter {quoted(name)}",
                    known=", ".join(names) or "none",
                )
            if name in self._given:
                raise UsageError(f"the parameter {name} is given twice: pass it once")
            self._given[name] = unquote_to_bytes(value)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def whole(self, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """Return a whole number; None if the parameter is missing.

        Raises:
            UsageError: it is not a whole number from ``least`` to ``most``.
        """
        text = self.text(name)
        if text is None:
            return None
        if _NUMBER.fullmatch(text) is None or not least <= int(text) <= most:
            bounds = f"of at least {least}" if most >= 2**63 - 1 else f"from {least} to {most}"
            raise UsageError(f"{name} must be a whole number {bounds}", given=quoted(text))
        return int(text)

    def flag(self, name: str) -> bool:
        """Return a boolean; False if the parameter is missing."""
        text = self.text(name)
        if text is not None and text not in _FLAGS:
            raise UsageError(f"{name} must be true or false", given=quoted(text))
        return _FLAGS.get(text or "", False)

    def text(self, name: str) -> str | None:
        """Return a text; None if the parameter is missing."""
        value = self._given.get(name)
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{name} must be text in UTF-8") from error

    def key(self, name: str) -> bytes | None:
        """Return bytes: percent-encoded in ``name``, or in ``name_base64`` or ``name_hex``.

        Raises:
            UsageError: more than one form is given, or the text is not valid.
        """
        forms = [form for form in (name, f"{name}_base64", f"{name}_hex") if form in self]
        if len(forms) > 1:
            raise UsageError(f"{' and '.join(forms)} exclude each other: pass one")
        if not forms:
            return None
        if forms[0] == name:
            return self._given[name]
        text = self.text(forms[0]) or ""
        if forms[0].endswith("_hex"):
            return hex_bytes(text, forms[0])
        # In a query an unescaped plus means a space, which base64 does not contain.
        return base64_bytes(text.replace(" ", "+"), forms[0])


@dataclass(slots=True, kw_only=True)
class Ask:
    """A request, with the parts read so far and the server's limits for it."""

    scope: Mapping[str, Any]
    receive: Any
    names: Mapping[str, str]
    headers: Mapping[str, str]
    query: Query
    limits: ServerLimits
    clock: Clock
    incoming: Allowance
    held: int = field(default=0)

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def message(self, wanted: type[T]) -> T:
        """Return the message in the body; without a media type, the body is JSON.

        Raises:
            UsageError: it is not such a message.
            WrongMediaType: it is neither JSON nor protobuf.
            BodyTooLarge, BodyTooSlow, TooMany: see `body`.
        """
        kind = self.media_type
        if kind not in (*UNTYPED, *JSON_TYPES, *PROTOBUF_TYPES):
            raise WrongMediaType(
                "the body must be JSON (application/json) or protobuf (application/protobuf)",
                given=quoted(kind),
            )
        data = await self.body()
        if kind in PROTOBUF_TYPES:
            decode = partial(decode_message, data, wanted, items_max=self.limits.records_max)
        else:
            decode = partial(decode_json, data, wanted, items_max=self.limits.records_max)
        if len(data) <= _HERE_BYTES_MAX:
            return decode()
        return await self.clock.offload(decode)

    async def body(self) -> bytes:
        """Return the body.

        Raises:
            BodyTooLarge: it exceeds the limit.
            BodyTooSlow: it arrives too slowly.
            TooMany: the server holds too many bytes for other requests.
            ClientGone: the client has closed the connection.
        """
        declared = self.headers.get("content-length", "")
        size = int(declared) if _NUMBER.fullmatch(declared) else 0
        most = self.limits.body_bytes_max
        if size > most:
            raise self._too_large()
        self._hold(size)
        kept: list[bytes] = []
        length = 0
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.body_timeout_us / SECOND_US
        while True:
            try:
                async with asyncio.timeout_at(until + length / BYTES_A_SECOND_MIN):
                    event = await self.receive()
            except TimeoutError as error:
                raise BodyTooSlow("the body arrived too slowly: send it without pauses") from error
            if event["type"] == "http.disconnect":
                raise ClientGone
            piece = event.get("body", b"")
            length += len(piece)
            if length > most:
                raise self._too_large()
            if length > self.held:
                self._hold(len(piece))
            kept.append(piece)
            if not event.get("more_body", False):
                return b"".join(kept)

    async def gone(self) -> None:
        """Wait until the client closes the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def _hold(self, amount: int) -> None:
        self.incoming.take(amount)
        self.held += amount

    def release(self) -> None:
        """Return the body's bytes to the allowance."""
        self.incoming.give(self.held)
        self.held = 0

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            "the body is too large: send fewer records in a request",
            most=self.limits.body_bytes_max,
        )


def decode_json(data: bytes, wanted: type[T], *, items_max: int) -> T:
    """Decode a message from JSON.

    The decoder is compiled and holds the interpreter's lock until its end, also in a thread.

    Raises:
        UsageError: the body is not such a message, or has more than ``items_max`` records.
    """
    try:
        message = msgspec.json.decode(data, type=wanted)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the body does not match /openapi.json: {_explained(str(error))}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    if len(getattr(message, "records", ())) > items_max:
        raise UsageError(f"the message has more than {items_max} items: send fewer in a request")
    return message


def _explained(fault: str) -> str:
    """Return the decoder's message, with the remedy of a common mistake."""
    if "base64" in fault:
        return f"{fault}. Base64 must use the standard alphabet and padding; write text unencoded"
    if re.search(r"unknown field `\w+Text`", fault):
        return f'{fault}. Write a text as "key" or "value", other bytes as {{"base64": "/w=="}}'
    return fault
