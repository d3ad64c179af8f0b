"""Arguments of ``tidelog shard``: names, schemas and times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tidelog.cli.command import on_location
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.persist.format.schema import ShardSchema
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.states.state import State

END: Final = "end"  # The empty frontier: the shard is finished.

ShardName = Annotated[str, typer.Argument(metavar="NAME", help="A shard.")]
T = TypeVar("T")


def on_shard(context: typer.Context, name: str, work: Callable[[Shard], Awaitable[T]]) -> T:
    """Find a shard and read its state, and return the result of ``work`` on it."""

    async def whole(location: Location) -> T:
        return await work(await location.shards.find(name))

    return on_location(context, whole)


def check_shard_name(name: str) -> None:
    """Raise unless the name is valid for a shard.

    Raises:
        UsageError: it is not.
    """
    from tidelog.core.ids import NamedKind, named_id

    named_id(NamedKind.SHARD, name)


def schema_of(state: State) -> ShardSchema:
    """Return the newest schema of a shard.

    Raises:
        UsageError: the shard was dropped before it got a schema.
    """
    from tidelog.persist.states.evolution import newest_schema

    if not state.schema:
        raise UsageError(
            "the shard was dropped before its first write, so it has no rows: name another shard"
        )
    return newest_schema(state)


def time_of(text: str, what: str) -> int:
    """Parse a time of a shard; ``what`` names the option in errors.

    Raises:
        UsageError: the text is not a time, or the time is too great.
    """
    from tidelog.core.arguments import DIGITS_MAX, quoted
    from tidelog.core.frontier import TIME_MAX

    plain = text.strip()
    if len(plain) > DIGITS_MAX or not (plain.isascii() and plain.isdecimal()):
        raise UsageError(
            f"{what} {quoted(text)} is not a time of a shard: write a whole number, 0 or more"
        )
    if int(plain) > TIME_MAX:
        raise UsageError(f"{what} must be at most {TIME_MAX}, not {plain}")
    return int(plain)


def shard_time_text(time: int | None) -> str:
    """Return the text of a time; None is ``end``."""
    return END if time is None else str(time)
