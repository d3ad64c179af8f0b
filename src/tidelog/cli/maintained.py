"""What the verbs of maintenance share: what they work on, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.output import say
from tidelog.errors import LocationError, StoreRefused

if TYPE_CHECKING:
    from tidelog.location import Location

MaintainedNames = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Collections; all, unless named.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on, again and again, until stopped with Ctrl-C.")
]
Wait = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="How long --follow waits in between.")
]


async def again_and_again(
    location: Location,
    once: Callable[[Location], Awaitable[None]],
    follow: bool,
    interval_s: float,
) -> None:
    """Do something once, or until the process is stopped; a store that fails is waited for."""
    while True:
        try:
            await once(location)
        except StoreRefused:
            raise
        except LocationError as error:
            if not follow:
                raise
            say(f"tidelog: {error}; trying again in {interval_s:g} seconds")
        if not follow:
            return
        await asyncio.sleep(interval_s)
