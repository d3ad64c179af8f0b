"""The objects of pins: read, list, and replace on condition of the version read.

Source: wal3-draft, "Snapshots of the log"; docs/internals/log-collection.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from tidelog.core.clock import Clock, run_all
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import ObjectNotFound
from tidelog.store.conditional import replace
from tidelog.store.port import Store
from tidelog.wal.format.pin import PINS, Pin, decode_pin, encode_pin, pin_name
from tidelog.wal.read.head import read_decoded


@dataclass(frozen=True, slots=True)
class PinWitness:
    """A pin as it was read or written, and its version."""

    pin: Pin
    e_tag: str

    @property
    def name(self) -> str:
        return self.pin.name


async def replace_pin(store: Store, clock: Clock, witness: PinWitness, pin: Pin) -> PinWitness:
    """Replace a pin if no other process has replaced it since ``witness`` was read.

    Raises:
        ObjectChanged: another process replaced it. NOT_APPLIED.
        OutcomeUnknown: see `replace`.
        LocationError: see `replace`.
    """
    e_tag = await replace(store, pin.path, encode_pin(pin), e_tag=witness.e_tag, clock=clock)
    return PinWitness(pin, e_tag)


async def read_pin(store: Store, path: str) -> PinWitness | None:
    """Read a pin, even a released one; return None if it does not exist.

    Raises:
        CorruptionError: the pin cannot be read, or belongs to another path.
    """
    try:
        return await read_decoded(
            store, path, lambda read: PinWitness(decode_pin(read.data, where=path), read.e_tag)
        )
    except ObjectNotFound:
        return None


async def each_pin(store: Store, *, prefix: str = PINS) -> AsyncIterator[PinWitness]:
    """Read all pins concurrently, also released ones; yield them in order."""
    paths = [entry.key async for entry in store.list(prefix) if pin_name(entry.key) is not None]
    work = [partial(read_pin, store, path) for path in paths]
    for found in await run_all(work, at_once=AT_ONCE_MAX):
        if found is not None:
            yield found


async def held_pins(store: Store, *, prefix: str = PINS) -> Sequence[PinWitness]:
    """Read the pins that hold something, also those that are not sure yet."""
    return [found async for found in each_pin(store, prefix=prefix) if found.pin.is_held]
