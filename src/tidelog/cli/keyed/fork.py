"""``tidelog keyed fork``: create a keyed log that shares the records of another."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.keyed.opened import check_keyed, closing
from tidelog.cli.output import choose_format, print_json, say

if TYPE_CHECKING:
    from tidelog.keyed.values import KeyedInfo
    from tidelog.location import Location

SourceKeyed = Annotated[str, typer.Argument(metavar="SOURCE", help="An existing keyed log.")]
NewKeyed = Annotated[str, typer.Argument(metavar="NAME", help="The keyed log to create.")]


def fork(
    context: typer.Context, source: SourceKeyed, name: NewKeyed, *, as_json: AsJson = False
) -> None:
    """Create a keyed log that begins with the records of SOURCE.

    The two share the stored objects; nothing is copied. Later appends to one do not change the
    other.
    """
    check_keyed(source)
    check_keyed(name)

    async def work(location: Location) -> KeyedInfo:
        async with closing(await location.keyed.fork(source, name)) as log:
            return await log.describe()

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(asdict(found))
    else:
        say(f"{name!r} is a fork of {source!r}; its next sequence is {found.next_sequence:,}.")
