"""Creation and release of pins, which protect records from deletion.

A pin races with a collection, because the collector may have read the pins before this one was
written. So the creator of a pin reads the manifest after its write, and the collector reads the
pins after it has replaced the manifest. One of the two sees the other. If a collection went past,
but not past the pin's start, the pin may name rewritten snapshots. Then the creator writes it again
from the newer manifest, and checks again.

Two creators of pins with the same name race too. Each writes its own object, *then* lists the
objects of the name, and gives up if another one holds something. If both write before either lists,
the first to list gives up, and maybe both do. So a name has at most one sure pin, and is free again
once that pin is released.

Pins of one fork are the exception: a killed call may have left one, and no process can see that its
maker is dead. So each call makes a pin of its own, and the fork's manifest decides between them,
which is created once. The call that creates it releases the other pins; a call that loses releases
only its own. A fork needs its own pin alone, so no release takes records from it.

Invariants: records that a sure pin holds are readable until the pin is released. A pin never holds
more than before, so once it holds nothing any process may delete its object at any time. Two writes
of a pin never have the same bytes.
Source: wal3-draft, "Snapshots of the log"; docs/internals/log-collection.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Final

from tidelog.core.clock import Clock, backoff_us, wall_us
from tidelog.errors import (
    BusyError,
    ContentionError,
    CorruptionError,
    LocationError,
    NameTaken,
    NoSuchLog,
    NoSuchPin,
    ObjectChanged,
    OutcomeUnknown,
    UsageError,
)
from tidelog.store.conditional import create
from tidelog.store.keys import Within
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.wal.format.link import EPOCHS
from tidelog.wal.format.manifest import FIRST_POSITION, Manifest
from tidelog.wal.format.pin import (
    Pin,
    check_pin_name,
    children_between,
    encode_pin,
    pins_named,
)
from tidelog.wal.gc.pin_objects import PinWitness, held_pins, read_pin, replace_pin
from tidelog.wal.read.bounds import check_range
from tidelog.wal.read.head import collected, load_head, load_living, refuse_destroyed
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail

TRIES_MAX: Final = 50


@dataclass(slots=True, kw_only=True)
class Pins:
    """The pins of the log at the root of ``store``. ``writer`` is a name for people."""

    store: Store
    clock: Clock
    writer: str

    async def create(
        self, name: str, *, start: int = 0, limit: int | None = None, holder: str = ""
    ) -> PinWitness:
        """Hold the records ``[start, limit)``, by default all current records.

        Raises:
            UsageError: the log has no such range, or the name is invalid.
            NameTaken: a pin has the name, or another process is creating one.
            PositionCollected: the records were collected, maybe concurrently; nothing is held.
            ContentionError: another process released the pin during its creation.
            OutcomeUnknown: the store failed after the pin was or may have been written: load it, or
            release it.
        """
        check_pin_name(name)
        check_range(start, limit)
        manifest = (await roll_up_tail(self.store, clock=self.clock, writer=self.writer)).manifest
        if manifest.chain is None:
            raise UsageError(
                "a log of the manifest protocol has no pins: hold its records with a cursor, or "
                "copy it to a log of the slot protocol"
            )
        refuse_destroyed(manifest, self.store)
        start = start or manifest.oldest
        limit = manifest.next if limit is None else limit
        _check_range(manifest, start, limit)
        if not _is_free(await self._held(name), holder):
            raise _name_taken(name)
        witness = await self._put(self._pin(name, manifest, start, limit, holder))
        try:
            return await self._made_sure(witness, manifest)
        except ObjectChanged as error:
            raise ContentionError(
                "another process dropped the pin during its creation: create it again", name=name
            ) from error
        except (LocationError, CorruptionError) as error:
            raise OutcomeUnknown(
                "the pin was written, but the check for concurrent collectors failed, so it may "
                "not hold: drop it, and create it again",
                name=name,
                reason=error,
            ) from error

    async def _made_sure(self, witness: PinWitness, manifest: Manifest) -> PinWitness:
        """Check for other pins of the name and for collections; then mark the pin as sure."""
        name, start, limit = witness.name, witness.pin.start, witness.pin.limit
        others = [one for one in await self._held(name) if one.pin.id != witness.pin.id]
        if not _is_free(others, witness.pin.holder):
            await self._replace(witness, start=limit)
            raise _name_taken(name)
        while True:
            newer = (await load_head(self.store)).manifest
            if newer.oldest > start:
                await self._replace(witness, start=limit, snapshots=(), fragments=())
                raise collected(start, newer.oldest)
            if newer.oldest == manifest.oldest:
                return await self._replace(witness, is_sure=True)
            # A collection went past: it may have rewritten snapshots that this pin names.
            manifest = newer
            snapshots, fragments = children_between(manifest, start, limit)
            witness = await self._replace(witness, snapshots=snapshots, fragments=fragments)

    async def load(self, name: str) -> PinWitness:
        """Read a pin.

        Raises:
            NoSuchPin: no pin has the name.
            BusyError: a process is creating it, or died before the pin was sure.
            CorruptionError: the pin cannot be read.
        """
        check_pin_name(name)
        held = await self._held(name)
        if not held:
            await load_living(self.store)
            raise NoSuchPin("the log has no pin of that name: list its pins", name=name)
        if (sure := _sure_of(held)) is None:
            raise BusyError(
                "another process is creating the pin, so it may not hold yet: try again later; if "
                "that process has died, drop the pin, then create it again",
                name=name,
            )
        return sure

    async def release(self, name: str, *, force: bool = False) -> None:
        """Release a pin; the next collection deletes the records that the log no longer needs.

        A pin that a killed fork left holds for no log, so it is released like any other.

        Raises:
            NoSuchPin: no pin has the name.
            UsageError: a fork reads its records, and ``force`` is False.
            ContentionError: other processes changed it at every try, or its fork became a log
            concurrently.
            OutcomeUnknown: the store failed after the release was sent.
            LocationError: the store failed; see ``outcome``.
        """
        check_pin_name(name)
        held = await self._held(name)
        if not held:
            await load_living(self.store)
            raise NoSuchPin("the log has no pin of that name", name=name)
        sure = _sure_of(held)
        for found in held if sure is None else [one for one in held if one.pin.is_sure]:
            await self.let_go(found, found.pin.limit, unless_shared=not force)
            if not force and await has_fork(self.store, found.pin):
                raise ContentionError(
                    f"another process created the fork {found.pin.holder!r} during the drop of "
                    "its pin, so the fork may lack records: drop the fork",
                    name=name,
                )

    async def confirm(self, held: PinWitness) -> None:
        """Write a fork's pin once more, now that the fork is a log.

        A release looks for the fork after it read the pin. So either this call finds the pin
        changed, or the release does, and looks for the fork again.

        Raises:
            ObjectChanged: another process has changed the pin.
            OutcomeUnknown: the store failed after the write was sent.
            LocationError: the store failed.
        """
        await self._replace(held)

    async def release_others(self, kept: PinWitness) -> None:
        """Release the pins that other calls made for the fork that ``kept`` holds for.

        Raises:
            ContentionError, OutcomeUnknown, LocationError: see `release`.
        """
        for found in await self._held(kept.name):
            if found.pin.id != kept.pin.id and found.pin.holder == kept.pin.holder:
                await self.let_go(found, found.pin.limit)

    async def shrink(self, holder: str, start: int) -> None:
        """Release the part of a fork's pin below ``start``. A pin never grows again.

        Raises:
            ContentionError: see `release`.
            OutcomeUnknown: see `release`.
            LocationError: see `release`.
        """
        for found in await self._held(holder):
            if found.pin.is_sure and found.pin.holder == holder:
                await self.let_go(found, start)

    async def let_go(self, found: PinWitness, start: int, *, unless_shared: bool = False) -> None:
        """Release the part of one pin below ``start``, despite concurrent changes of the pin.

        Raises:
            UsageError: a fork reads it, and ``unless_shared`` is True.
            ContentionError: see `release`.
            OutcomeUnknown: see `release`.
            LocationError: see `release`.
        """
        now: PinWitness | None = found
        for attempt in range(TRIES_MAX):
            if now is None or now.pin.start >= min(start, now.pin.limit):
                return
            if unless_shared and await has_fork(self.store, now.pin):
                raise UsageError(
                    f"the fork {now.pin.holder!r} reads the records of this pin: drop the fork "
                    "first",
                    name=now.name,
                )
            with suppress(ObjectChanged, OutcomeUnknown):
                await self._replace(now, start=min(start, now.pin.limit))
                return
            await self.clock.sleep(backoff_us(attempt, self.clock, most_us=100_000))
            now = await read_pin(self.store, found.pin.path)
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries to drop the pin: other processes kept changing it; "
            "try again",
            name=found.name,
        )

    async def list(self) -> dict[str, Pin]:
        """Read all pins that hold something, by name; skip other objects in the folder.

        Raises:
            CorruptionError: a pin cannot be read.
        """
        held = [found.pin for found in await held_pins(self.store)]
        # If several have one name, all but one are being given up; prefer the sure one.
        return {pin.name: pin for pin in sorted(held, key=lambda pin: pin.is_sure)}

    async def _held(self, name: str) -> Sequence[PinWitness]:
        """Read the held pins of a name. More than one exists only during or after a race."""
        return await held_pins(self.store, prefix=pins_named(name))

    def _pin(self, name: str, manifest: Manifest, start: int, limit: int, holder: str) -> Pin:
        snapshots, fragments = children_between(manifest, start, limit)
        return Pin(
            name=name,
            id=self.clock.unique()[:16],
            start=start,
            limit=limit,
            swept=start,
            epoch_us=wall_us(self.clock),
            writer=self._signature(),
            holder=holder,
            snapshots=snapshots,
            fragments=fragments,
        )

    async def _put(self, pin: Pin) -> PinWitness:
        data = encode_pin(pin)
        return PinWitness(
            pin, await create(self.store, pin.path, data, clock=self.clock, replaceable=True)
        )

    async def _replace(self, witness: PinWitness, **fields: object) -> PinWitness:
        pin = changed(witness.pin, writer=self._signature(), **fields)  # type: ignore[arg-type]
        return await replace_pin(self.store, self.clock, witness, pin)

    def _signature(self) -> str:
        return f"{self.writer} {self.clock.unique()}"


async def has_fork(store: Store, pin: Pin) -> bool:
    """Return True if a fork reads the records of a pin of the log at the root of ``store``.

    The log that the pin is held for may not exist, share nothing with this one, or be destroyed.

    Raises:
        CorruptionError: the manifest of that log cannot be read.
        LocationError: the store failed.
    """
    if not pin.holder or not isinstance(store, Within):
        return bool(pin.holder)
    fork = store.sibling(pin.holder)
    try:
        chain = (await load_head(fork)).manifest.chain
    except NoSuchLog:
        # A log with records but without a manifest can be rebuilt, and may be the fork.
        return await first_entry(fork, EPOCHS) is not None
    if chain is None or chain.is_destroyed or (origin := chain.origin) is None:
        return False
    return origin.pin == pin.name and store.sibling(origin.log).url == store.url


def _sure_of(held: Sequence[PinWitness]) -> PinWitness | None:
    return next((found for found in held if found.pin.is_sure), None)


def _is_free(held: Sequence[PinWitness], holder: str) -> bool:
    """Return True if all pins of a name are of the fork ``holder``, so it may make another."""
    return all(holder and found.pin.holder == holder for found in held)


def _name_taken(name: str) -> NameTaken:
    return NameTaken(
        "the log already has a pin of that name, or another process is creating one: drop it, or "
        "choose another name",
        name=name,
    )


def _check_range(manifest: Manifest, start: int, limit: int) -> None:
    if limit > manifest.next:
        raise UsageError(
            f"a pin's limit must not be after the log's next position, {manifest.next}, not {limit}"
        )
    if not FIRST_POSITION <= start < limit:
        raise UsageError(
            "a pin must hold at least one of the log's records: choose a start that is before the "
            "limit and before the next position",
            start=start,
            limit=limit,
            oldest=manifest.oldest,
            next=manifest.next,
        )
    if start < manifest.oldest:
        raise collected(start, manifest.oldest)
