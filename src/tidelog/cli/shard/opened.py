"""Shared code of the verbs of ``tidelog shard``: names, schemas and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.core.frontier import Frontier
    from tidelog.persist.format.schema import ShardSchema
    from tidelog.persist.states.state import State

END: Final = "end"  # The empty frontier: the shard is finished.
TIME_HELP: Final = "a whole number, 0 or more"

ShardName = Annotated[str, typer.Argument(metavar="NAME", help="A shard.")]


def check_shard_name(name: str) -> None:
    """Raise unless the name is valid for a shard.

    Raises:
        UsageError: it is not.
    """
    from tidelog.core.ids import Named, named_id

    named_id(Named.SHARD, name)


def schema_of(state: State) -> ShardSchema:
    """Return the newest schema of a shard.

    Raises:
        UsageError: the shard was dropped before it got a schema.
    """
    from tidelog.persist.states.evolution import newest_schema

    if not state.schema:
        raise UsageError("the shard has no schema: it was dropped before it was written")
    return newest_schema(state)


def frontier_of(text: str, what: str) -> Frontier:
    """Parse a time or ``end`` into a frontier; ``what`` names the option in errors.

    Raises:
        UsageError: the text is neither.
    """
    from tidelog.core.frontier import Frontier

    if text.strip().lower() == END:
        return Frontier.of(None)
    return Frontier.at(time_of(text, what))


def time_of(text: str, what: str) -> int:
    """Parse a time of a shard; ``what`` names the option in errors.

    Raises:
        UsageError: the text is not a time, or the time is too great.
    """
    from tidelog.core.arguments import DIGITS_MAX, quoted
    from tidelog.core.frontier import TIME_MAX

    plain = text.strip()
    if len(plain) > DIGITS_MAX or not (plain.isascii() and plain.isdecimal()):
        raise UsageError(f"{what} {quoted(text)} is not a time of a shard: write {TIME_HELP}")
    if int(plain) > TIME_MAX:
        raise UsageError(f"{what} must be at most {TIME_MAX}, not {plain}")
    return int(plain)


def time_text(time: int | None) -> str:
    """Return the text of a time; None is ``end``."""
    return END if time is None else str(time)
