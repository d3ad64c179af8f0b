"""A walker of a slot log past its manifest: slot by slot, several reads at once.

A follower walks until a slot is missing. A process that wants the end of the log looks once
instead: listings show which slots exist. A slot missing from them, and every later slot, held
nothing committed before the look. So the walk over them ends, however fast a writer appends.

A missing slot proves nothing by itself: the caller checks the manifest again. A seal counts only if
the manifest, read after the walk met the seal, has not gone past it.

The fence of an epoch decides which of its slots are in the log: all slots below the first fence
hold data, and those at or after it are void. So once the log has been opened again, an append that
ended in `OutcomeUnknown` is decided.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from tidelog.core.clock import Clock, run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import EPOCHS, Epoch, Link, Tail
from tidelog.wal.format.manifest import Manifest, chain_of, tail_of
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.read.epoch_history import with_epoch
from tidelog.wal.read.head import Head, load_head, load_living, read_decoded, renew_head
from tidelog.wal.slot_protocol.chain import Step, has_passed, step
from tidelog.wal.slot_protocol.link_reader import read_link

READS_MAX: Final = 8
LINKS_MAX: Final = 32  # Links are small.


@dataclass(frozen=True, slots=True)
class WalkedObject:
    """One object of a walk: its step, and the tail after it.

    ``data`` is the bytes of the object, empty if only its link was read.
    """

    step: Step
    tail: Tail
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class TailProbe:
    """The result of one look past ``tail``: the sizes in bytes of the objects found, by path.

    A slot not listed was missing at some moment of the look. So it and all later slots held nothing
    committed before the look, unless those were collected during it.
    """

    tail: Tail
    sizes: Mapping[str, int] = field(default_factory=dict)

    def paths(self, tail: Tail, most: int) -> list[str]:
        """Return at most ``most`` paths that were found from a tail on without a gap."""
        found: list[str] = []
        while len(found) < most and (path := tail.path) in self.sizes:
            found.append(path)
            tail = replace(tail, slot=tail.slot + 1)
        return found


@dataclass(frozen=True, slots=True)
class WalkedEnd:
    """The manifest, the steps of a walk past it, and the tail where the log ended.

    The manifest may already list some of the steps: `extend` skips these.
    """

    head: Head
    steps: tuple[Step, ...]
    tail: Tail

    @property
    def manifest(self) -> Manifest:
        return self.head.manifest

    @property
    def fragments(self) -> list[Fragment]:
        """Return the fragments that the manifest does not list yet."""
        found = [one for one in self.steps if isinstance(one, Fragment)]
        return [one for one in found if one.start >= self.manifest.next]

    @property
    def seal(self) -> Seal | None:
        """Return the seal, if the log is sealed."""
        if self.steps and isinstance(last := self.steps[-1], Seal):
            return last
        return chain_of(self.manifest).seal


_Found: TypeAlias = tuple[Link, int, bytes]
_Read: TypeAlias = Callable[[str], Awaitable[_Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReader:
    """A walker of one log. It reads at most ``reads`` slots at once."""

    store: Store
    clock: Clock
    reads: int = READS_MAX

    async def end(
        self, head: Head | None = None, tail: Tail | None = None, *, known: Head | None = None
    ) -> WalkedEnd:
        """Return a tail that was the end of the log at some moment between the call and its return.

        The walk starts at the given manifest, or at a tail past it, and reads links only. The
        number of requests depends only on the log's length at the call. Without a ``head``, the
        manifest is read, but not decoded again if ``known`` is its version.

        Raises:
            NoSuchLog: the log does not exist or was dropped.
            CorruptionError: the log is broken.
            LocationError: the store failed.
        """
        head = await load_living(self.store, known) if head is None else head
        if chain_of(head.manifest).seal is not None:
            return WalkedEnd(head, (), tail_of(head.manifest))
        tail = tail or tail_of(head.manifest)
        seen = await self.look(tail)
        if len(seen.sizes) > LINKS_MAX:  # By now the writer has rolled up most of these slots.
            newer = await renew_head(self.store, head)
            if has_gone_on(newer.manifest, tail):
                head, tail = newer, tail_of(newer.manifest)
        while True:
            steps, error = list[Step](), None
            try:
                async for passed in self.links(tail, seen):
                    steps.append(passed.step)
                    tail = passed.tail
            except CorruptionError as found:
                # Ignored if a collection went past: a late writer may have put an object into a
                # collected slot.
                error = found
            newer = await renew_head(self.store, head)
            if newer is head or not has_gone_on(newer.manifest, tail):
                if error is not None:
                    raise error
                return WalkedEnd(newer, tuple(steps), tail)
            head, tail = newer, tail_of(newer.manifest)
            if head.manifest.oldest > seen.tail.position:
                seen = await self.look(tail)  # The missing slots may have been collected.
            elif tail.path not in seen.sizes:
                return WalkedEnd(head, (), tail)

    async def look(self, tail: Tail, *, ask_first: bool = True) -> TailProbe:
        """List the objects past a tail, once.

        If nothing is there, this takes one request. Otherwise it takes a listing for each lane that
        has objects, and one of all later epochs. A listing is one page of 1,000 keys, unless many
        slots are not rolled up yet. A caller that knows that the tail has an object
        passes ``ask_first=False``.
        """
        if ask_first:
            try:
                await self.store.get(tail.path, limit=1)
            except ObjectNotFound:
                return TailProbe(tail)
        listings = [partial(self._later, tail.epoch), partial(self._in_lanes, tail)]
        later, here = await run_all(listings, at_once=2)
        return TailProbe(tail, {**here, **later})

    async def links(self, tail: Tail, seen: TailProbe) -> AsyncGenerator[WalkedObject, None]:
        """Yield objects as `walk` does, to the end of ``seen``, but read only their links."""

        async def read(path: str) -> _Found:
            link, size_bytes = await read_link(self.store, path, seen.sizes[path])
            return link, size_bytes, b""

        async with aclosing(
            self._walk(tail, read, seen, window=LINKS_MAX, most=LINKS_MAX)
        ) as found:
            async for passed in found:
                yield passed

    async def walk(
        self, tail: Tail, *, seen: TailProbe | None = None
    ) -> AsyncGenerator[WalkedObject, None]:
        """Yield objects from ``tail`` on, to the first missing slot or a seal.

        With ``seen``, only the objects listed there are read.

        Raises:
            CorruptionError: an object does not continue the log.
            LocationError: the store failed.
        """

        async def read(path: str) -> _Found:
            return await read_decoded(
                self.store,
                path,
                lambda found: (decode_link(found.data, path=path), len(found.data), found.data),
            )

        async with aclosing(self._walk(tail, read, seen, window=1, most=self.reads)) as found:
            async for passed in found:
                yield passed

    async def _walk(
        self, tail: Tail, read: _Read, seen: TailProbe | None, *, window: int, most: int
    ) -> AsyncGenerator[WalkedObject, None]:
        while paths := _paths(tail, window) if seen is None else seen.paths(tail, window):
            window = min(2 * window, most)
            for found in await run_all([partial(_tried, read, p) for p in paths], at_once=most):
                if found is None:
                    return
                if isinstance(found, CorruptionError):
                    raise found
                link, size_bytes, data = found
                epoch = tail.epoch
                tail, met = step(tail, link, size_bytes)
                if isinstance(met, Seal) and await self._is_stray(epoch, met):
                    return
                yield WalkedObject(met, tail, data)
                if isinstance(met, Seal):
                    return
                if tail.epoch != epoch:
                    break  # The other objects read are past the fence, and void.

    async def _is_stray(self, epoch: Epoch, seal: Seal) -> bool:
        """Return True if a seal is stray: its slot was empty because its data was collected.

        A stray fence that opens an epoch needs no such check: its epoch is empty, so the walk ends
        at a missing slot, and the caller checks the manifest then.
        """
        manifest = (await load_head(self.store)).manifest
        return has_passed(manifest, epoch, seal.slot, None)

    async def _in_lanes(self, tail: Tail) -> dict[str, int]:
        """List the lanes of an epoch, in slot order, until a slot is missing.

        Objects in further lanes cannot be committed, so these lanes are not listed.
        """
        sizes: dict[str, int] = {}
        at, count, lanes = tail.slot, 1, tail.epoch.lanes
        while (left := tail.slot + lanes - at) > 0:
            slots = range(at, at + min(count, left))
            work = [partial(self._in_lane, tail.epoch, slot) for slot in slots]
            for listed in await run_all(work, at_once=self.reads):
                sizes |= listed
            if any(tail.epoch.path(slot) not in sizes for slot in slots):
                break
            at, count = slots.stop, 2 * count
        return sizes

    async def _in_lane(self, epoch: Epoch, slot: int) -> dict[str, int]:
        """List the lane of a slot, from that slot on."""
        lane = epoch.path(slot).rpartition("/")[0] + "/"
        after = f"{lane}{slot - 1:016x}.parquet"
        return {one.key: one.size_bytes async for one in self.store.list(lane, after=after)}

    async def _later(self, epoch: Epoch) -> dict[str, int]:
        """List all epochs after ``epoch``."""
        after = f"{EPOCHS}{epoch.name}/\U0010ffff"
        return {one.key: one.size_bytes async for one in self.store.list(EPOCHS, after=after)}


async def _tried(read: _Read, path: str) -> _Found | CorruptionError | None:
    """Read an object; return None if it is missing, or its error for the walk to raise in order."""
    try:
        return await read(path)
    except ObjectNotFound:
        return None
    except CorruptionError as error:
        return error


def _paths(tail: Tail, count: int) -> list[str]:
    return [replace(tail, slot=tail.slot + number).path for number in range(count)]


def has_gone_on(manifest: Manifest, tail: Tail) -> bool:
    """Return True if a manifest is past a tail, by records or by an epoch."""
    is_later = chain_of(manifest).last.number > tail.epoch.number
    return manifest.next > tail.position or is_later


@dataclass(frozen=True, slots=True)
class End:
    """The slot of the fence that ended an epoch, and the epoch or seal that follows."""

    slot: int
    after: Epoch | Seal


async def end_of_epoch(store: Store, epoch: Epoch, *, clock: Clock) -> End | None:
    """Return the end of an epoch, or None if it has not ended.

    Raises:
        CorruptionError: the log is broken.
        LocationError: the store failed.
    """
    while True:
        manifest = (await load_head(store)).manifest
        known = await with_epoch(store, chain_of(manifest), epoch)
        if (end := _end_in(known, epoch)) is not None:
            return end
        tail, end = tail_of(manifest), None
        async for passed in ChainReader(store=store, clock=clock).walk(tail):
            if isinstance(passed.step, Epoch | Seal) and tail.epoch.name == epoch.name:
                end = End(tail.slot, passed.step)
                break
            tail = passed.tail
        # Believe the walk only if the manifest, read after it, agrees: a missing slot or a fence
        # may be where collected data was.
        newer = (await load_head(store)).manifest
        if end is not None:
            after = end.after.name if isinstance(end.after, Epoch) else None
            if not has_passed(newer, epoch, end.slot, after):
                return end
        elif newer.next_seq_no <= tail.slot and chain_of(newer) == chain_of(manifest):
            return None


def _end_in(chain: Chain, epoch: Epoch) -> End | None:
    if (following := chain.after(epoch)) is not None:
        return End(following.first_slot, following)
    if chain.seal is not None and chain.last.name == epoch.name:
        return End(chain.seal.slot, chain.seal)
    return None
