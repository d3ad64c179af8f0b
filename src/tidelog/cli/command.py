"""Common parts of all commands: shared options, one event loop, one open location."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidelog.cli.output import say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
CollectionName = Annotated[
    str, typer.Argument(metavar="NAME", help="A collection, or NAME_errors for its bad rows.")
]
LogName = Annotated[str, typer.Argument(metavar="NAME", help="A log.")]
SourceName = Annotated[str, typer.Argument(metavar="NAME", help="A source.")]


def location_url(context: typer.Context, *, is_lasting: bool = True) -> str:
    """Return the URL of the command's location.

    ``is_lasting`` is False for a command that creates all its data itself.

    Raises:
        UsageError: the user gave no location, or one whose data would vanish with the command.
    """
    url: str | None = context.find_root().obj
    if not url:
        raise UsageError(
            "no location: write 'tidelog --location URL ...' (file:///data/lake, "
            "s3://bucket/prefix, or a path), or set TIDELOG_LOCATION"
        )
    if is_lasting and url.lower().startswith("memory:"):
        raise UsageError("memory:// ends with the command: use a path, file:// or s3://")
    return url


def on_location(context: typer.Context, work: Callable[[Location], Awaitable[T]]) -> T:
    """Open the location, await ``work`` on it, and return the result.

    Raises:
        NoSuchLocation: the location does not exist. Nothing is created.
        Any error of ``work``.
    """
    from tidelog.location import open_location

    url = location_url(context)

    async def whole() -> T:
        return await work(await open_location(url))

    return asyncio.run(whole())


def ask_first(question: Callable[[], str], *, deed: str, undone: str) -> None:
    """Ask the user to confirm a deed that is final; exit if the answer is not yes.

    Raises:
        UsageError: standard input is not a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"standard input is not a terminal: pass --yes to {deed}")
    try:
        is_meant = typer.confirm(question(), err=True)
    except typer.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise
        say("")  # At the end of input, the terminal's cursor is still on the line of the question.
        undone, is_meant = f"No answer. {undone}", False
    if not is_meant:
        say(undone)
        raise typer.Exit(1)
