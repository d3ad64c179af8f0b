"""What a room serves: endpoints, of which the app makes routes. No room knows another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from tidelog.server.asking import Ask


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query: its name, its JSON schema, and what it says."""

    name: str
    schema: Mapping[str, Any]
    told: str


@dataclass(frozen=True, slots=True)
class Plain:
    """An answer that is no message: its bytes, and what they are."""

    body: bytes
    media_type: str


Handler = Callable[["Ask"], Awaitable[Struct | Plain]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What is served at a path by one method.

    ``request`` is the message of the body, if it has one. ``is_write`` asks for a token that may
    append; ``is_public`` for none, and it answers while the server ends, too.
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
class ServedRoom:
    """A room: its endpoints, whether it is well, what ends its waiting, and what closes it."""

    name: str
    endpoints: tuple[Endpoint, ...]
    check_ready: Callable[[], Awaitable[None]] = _nothing
    stop_waiting: Callable[[], None] = field(default=lambda: None)
    close: Callable[[], Awaitable[None]] = _nothing
