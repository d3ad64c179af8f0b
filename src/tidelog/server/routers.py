"""Routers: groups of endpoints, which the app turns into routes. No router knows another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from tidelog.server.request import Ask


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter: its name, its JSON schema, and its description."""

    name: str
    schema: Mapping[str, Any]
    told: str


@dataclass(frozen=True, slots=True)
class Plain:
    """An answer that is not a message: its bytes and their media type."""

    body: bytes
    media_type: str


Handler = Callable[["Ask"], Awaitable[Struct | Plain]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A method of a path, and its handler.

    ``request`` is the message of the body, if it has one. ``is_write`` requires a token that may
    append. ``is_public`` requires no token, and also answers while the server ends.
    """

    path: str
    method: str
    name: str
    summary: str
    handler: Handler
    parameters: tuple[Parameter, ...] = ()
    request: type[Struct] | None = None
    answer: type[Struct] | str = ""
    errors: tuple[int, ...] = ()
    is_write: bool = False
    is_public: bool = False


async def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A router: its endpoints, its health check, and the functions that end its work."""

    name: str
    endpoints: tuple[Endpoint, ...]
    check_ready: Callable[[], Awaitable[None]] = _nothing
    stop_waiting: Callable[[], None] = field(default=lambda: None)
    close: Callable[[], Awaitable[None]] = _nothing
