"""Answers: their media type, their encoding, and sending in pieces to slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from tidelog.http.api.messages import encode_json
from tidelog.http.api.protobuf_wire import encode_message
from tidelog.server.limits import BYTES_A_SECOND_MIN, SECOND_US, Allowance
from tidelog.server.request import JSON_TYPES, PROTOBUF_TYPES, ClientGone
from tidelog.server.routers import Plain

PIECE_BYTES: Final = 65_536

Headers = list[tuple[bytes, bytes]]


def media_type_of(accept: str, given: str) -> str:
    """Return the media type of the answer: the accepted one, else that of the request's body."""
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        kind, *options = (piece.strip() for piece in part.split(";"))
        weights[kind] = max(weights.get(kind, 0.0), _weight(options))
    known = [
        media_type
        for media_type in (*JSON_TYPES, *PROTOBUF_TYPES)
        if weights.get(media_type, 0) > 0
    ]
    if known:
        return max(known, key=lambda media_type: weights[media_type])
    return PROTOBUF_TYPES[0] if given in PROTOBUF_TYPES and not accept else JSON_TYPES[0]


def _weight(options: list[str]) -> float:
    for option in options:
        name, _, value = option.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def encoded(answer: Struct | Plain, media_type: str) -> Plain:
    """Return an answer encoded in a media type."""
    if isinstance(answer, Plain):
        return answer
    if media_type in PROTOBUF_TYPES:
        return Plain(encode_message(answer), media_type)
    return Plain(encode_json(answer), media_type)


async def send_answer(
    scope: Mapping[str, Any],
    send: Any,
    answer: Plain,
    *,
    status: int,
    headers: Headers,
    timeout_us: int,
    outgoing: Allowance | None,
) -> None:
    """Send an answer in pieces, and disconnect a client that reads too slowly.

    ``outgoing`` limits the bytes on their way to all clients. Without it the answer is always sent,
    because a refusal must reach the client.

    Raises:
        TooMany: too many bytes are on their way to other clients; nothing was sent.
        ClientGone: the client was disconnected.
    """
    size = len(answer.body)
    if outgoing is not None:
        outgoing.take(size)
    try:
        seconds = timeout_us / SECOND_US + size / BYTES_A_SECOND_MIN
        async with asyncio.timeout(seconds):
            await _send(send, answer, status, headers)
    except TimeoutError as error:
        abort = scope.get("state", {}).get("abort")
        if abort is not None:  # This also drops the bytes in the system's buffers.
            abort()
        raise ClientGone from error
    finally:
        if outgoing is not None:
            outgoing.give(size)


def head_of(answer: Plain, headers: Headers) -> Headers:
    """Return the headers of an answer with those of its body."""
    return [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *headers,
    ]


async def _send(send: Any, answer: Plain, status: int, headers: Headers) -> None:
    head = head_of(answer, headers)
    await send({"type": "http.response.start", "status": status, "headers": head})
    body = memoryview(answer.body)
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        piece = bytes(body[start : start + PIECE_BYTES])
        is_more = start + PIECE_BYTES < len(body)
        await send({"type": "http.response.body", "body": piece, "more_body": is_more})
