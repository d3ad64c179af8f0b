"""Making pins, letting go of them, and what they keep from being deleted.

A pin and a collection race: who deletes may have read the pins before this one was written. So
whoever makes a pin looks at the manifest afterwards, and a collector reads the pins only once it
has replaced the manifest. One of the two sees the other. If a collection went past, but not past
the pin's start, the pin may name snapshots that were made anew: it is written again, from the newer
manifest, and looks again.

Invariants: what a pin that is sure holds can be read until it is released. A pin's object is
replaced on condition, and never deleted; no two writes of one are equal in their bytes.
Source: wal3-draft, "Snapshots of the log"; docs/log.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from dataclasses import replace as changed

from tidelog.clock import Clock
from tidelog.errors import (
    BusyError,
    NameTaken,
    NoSuchPin,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    UsageError,
)
from tidelog.store.conditional import create, replace
from tidelog.store.port import Store
from tidelog.wal.format.manifest import FIRST_POSITION, Manifest
from tidelog.wal.format.pin import (
    PINS,
    Pin,
    children_between,
    decode_pin,
    encode_pin,
    pin_name,
    pin_path,
)
from tidelog.wal.read.head import collected, load_head
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail


@dataclass(frozen=True, slots=True)
class PinWitness:
    """A pin as it was read or written, and the version that proves it."""

    name: str
    pin: Pin
    e_tag: str


@dataclass(slots=True, kw_only=True)
class Pins:
    """The pins of the log at the root of ``store``. ``writer`` is a name for people."""

    store: Store
    clock: Clock
    writer: str

    async def create(
        self, name: str, *, start: int = 0, limit: int | None = None, holder: str = ""
    ) -> PinWitness:
        """Hold the records ``[start, limit)``: all that there are now, unless it is said.

        Raises:
            UsageError: the log has no such range, or no pin can have the name. NameTaken: there is
            a pin of the name. PositionCollected: the records are gone, or went meanwhile; nothing
            is held. OutcomeUnknown: the store failed after the pin was written, or may have been:
            load it.
        """
        path = pin_path(name)
        manifest = (await roll_up_tail(self.store, clock=self.clock, writer=self.writer)).manifest
        if manifest.chain is None:
            raise UsageError("a log in wal3's form has no pins: hold it by a cursor, or copy it")
        start = start or manifest.oldest
        limit = manifest.next if limit is None else limit
        _check_range(manifest, start, limit)
        pin = self._pin(manifest, start, limit, holder)
        witness = await self._put(name, pin, await self._free(name, path))
        while True:
            newer = (await load_head(self.store)).manifest
            if newer.oldest > start:
                await self._replace(witness, start=limit, snapshots=(), fragments=())
                raise collected(start, newer.oldest)
            if newer.oldest == manifest.oldest:
                return await self._replace(witness, is_sure=True)
            # A collection went past: snapshots that this names may have been made anew.
            manifest = newer
            fresh = self._pin(manifest, start, limit, holder)
            witness = await self._replace(
                witness, snapshots=fresh.snapshots, fragments=fresh.fragments
            )

    async def load(self, name: str) -> PinWitness:
        """Read a pin.

        Raises:
            NoSuchPin: there is none. BusyError: it is being made, or whoever made it died before it
            was sure. CorruptionError: it cannot be read.
        """
        found = await read_pin(self.store, name)
        if found is None or not found.pin.is_held:
            raise NoSuchPin("the log has no such pin: make it", name=name)
        if not found.pin.is_sure:
            raise BusyError(
                "the pin is not known to hold: whoever makes it has not finished; if that process "
                "has died, release it, and make it again",
                name=name,
            )
        return found

    async def release(self, name: str, *, force: bool = False) -> None:
        """Let go of what a pin holds; the next collection deletes what the log does not need.

        Raises:
            NoSuchPin: there is none. UsageError: it is held for a fork, and ``force`` is False.
            ContentionError: another changed it meanwhile: try again.
        """
        found = await read_pin(self.store, name)
        if found is None or not found.pin.is_held:
            raise NoSuchPin("the log has no such pin", name=name)
        if found.pin.holder and not force:
            raise UsageError(
                f"the log {found.pin.holder!r} is a fork, and reads what this pin holds: destroy "
                "it first",
                name=name,
            )
        await self._replace(found, start=found.pin.limit)

    async def shrink(self, name: str, start: int) -> None:
        """Let go of what a pin holds below ``start``; it holds no more than before."""
        found = await read_pin(self.store, name)
        if found is not None and found.pin.start < start:
            await self._replace(found, start=min(start, found.pin.limit))

    async def list(self) -> dict[str, Pin]:
        """Read all pins that hold something, by name; other objects beside them are passed over.

        Raises:
            CorruptionError: one cannot be read.
        """
        return {found.name: found.pin async for found in each_pin(self.store) if found.pin.is_held}

    async def _free(self, name: str, path: str) -> PinWitness | None:
        found = await read_pin(self.store, name)
        if found is not None and found.pin.is_held:
            raise NameTaken("the log has such a pin already: release it, or choose another name")
        if found is not None and found.pin.swept < found.pin.limit:
            raise BusyError("the pin of this name was released: collect, then make it again")
        return found

    def _pin(self, manifest: Manifest, start: int, limit: int, holder: str) -> Pin:
        snapshots, fragments = children_between(manifest, start, limit)
        return Pin(
            start=start,
            limit=limit,
            swept=start,
            epoch_us=self.clock.now_us(),
            writer=self._signature(),
            holder=holder,
            snapshots=snapshots,
            fragments=fragments,
        )

    async def _put(self, name: str, pin: Pin, before: PinWitness | None) -> PinWitness:
        path, data = pin_path(name), encode_pin(pin)
        try:
            if before is None:
                e_tag = await create(self.store, path, data, clock=self.clock, replaceable=True)
            else:
                e_tag = await replace(self.store, path, data, e_tag=before.e_tag, clock=self.clock)
        except (ObjectExists, ObjectChanged) as error:
            raise NameTaken("another made a pin of this name just now", name=name) from error
        return PinWitness(name, pin, e_tag)

    async def _replace(self, witness: PinWitness, **fields: object) -> PinWitness:
        pin = changed(witness.pin, writer=self._signature(), **fields)  # type: ignore[arg-type]
        return await replace_pin(self.store, self.clock, witness, pin)

    def _signature(self) -> str:
        return f"{self.writer} {self.clock.unique()}"


async def replace_pin(store: Store, clock: Clock, witness: PinWitness, pin: Pin) -> PinWitness:
    """Replace a pin, provided that nobody has since it was read.

    Raises:
        ObjectChanged: somebody has. NOT_APPLIED. OutcomeUnknown, LocationError: see `replace`.
    """
    path = pin_path(witness.name)
    e_tag = await replace(store, path, encode_pin(pin), e_tag=witness.e_tag, clock=clock)
    return PinWitness(witness.name, pin, e_tag)


async def read_pin(store: Store, name: str) -> PinWitness | None:
    """Read a pin as it is, also one that holds nothing any more; None if there never was one.

    Raises:
        UsageError: no pin can have the name. CorruptionError: it cannot be read.
    """
    path = pin_path(name)
    try:
        found = await store.get(path)
    except ObjectNotFound:
        return None  # Or its log was destroyed.
    return PinWitness(name, decode_pin(found.data, where=path), found.e_tag)


async def each_pin(store: Store) -> AsyncIterator[PinWitness]:
    """Read one pin after the other, also those that hold nothing any more."""
    for key in [entry.key async for entry in store.list(PINS)]:
        name = pin_name(key)
        if name is not None and (found := await read_pin(store, name)) is not None:
            yield found


def _check_range(manifest: Manifest, start: int, limit: int) -> None:
    if not FIRST_POSITION <= start < limit <= manifest.next:
        raise UsageError(
            "a pin holds at least one record of those that the log has",
            start=start,
            limit=limit,
            oldest=manifest.oldest,
            next=manifest.next,
        )
    if start < manifest.oldest:
        raise collected(start, manifest.oldest)
