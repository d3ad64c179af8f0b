"""The part of a fork's origin log that the fork still needs.

Source: design page 3, "Manifest tree, setsum, cursors, collection".
"""

from __future__ import annotations

from tidelog.core.clock import Clock
from tidelog.store.keys import Within
from tidelog.wal.gc.pin_objects import held_pins
from tidelog.wal.gc.pins import Pins
from tidelog.wal.read.head import load_head


async def let_go_of_origin(store: Within, *, clock: Clock, writer: str) -> None:
    """Shrink a fork's pin in its origin log to the records that the fork and its own forks need."""
    manifest = (await load_head(store)).manifest
    if manifest.chain is None or (origin := manifest.chain.origin) is None:
        return
    # Also count pins that are not sure yet.
    held = [found.pin.start for found in await held_pins(store)]
    source = Pins(store=store.sibling(origin.log), clock=clock, writer=writer)
    await source.shrink(origin.pin, min([manifest.oldest, *held]))
