"""Fencing: opening a slot log for writing, and sealing it. Both end an epoch with fences.

A listing of each lane shows how far the epoch has come. The opener puts fences from the first free
slot on, and some far ahead of it (`tidelog.wal.slot_protocol.burst`), until one is stored in a slot
that the writer has not reached. Only then it reads the log on in slot order, and the first fence
that it meets decides.

The opener starts this walk at a manifest that it reads *after* its fence is stored. The reason: if
a collection had emptied the slot before the put, the fence would be stray. Then that manifest is
past the slot, and the walk does not visit it.

Invariants: an opener owns an epoch only if its fence is the first in slot order, and was stored
before anything at or after that slot was collected. A writer that another opener fenced does not
open a new epoch over that opener's.
Source: wal3-draft, "Fencing"; design page 3, "Open for writing"; docs/decisions/0010.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tidelog.core.clock import Clock, backoff_us, run_all
from tidelog.errors import (
    ContentionError,
    Fenced,
    LogSealed,
    ObjectNotFound,
    TidelogError,
    UsageError,
)
from tidelog.store.conditional import DEFAULT_RESEND, KeyOwner, Resend, create_or_read, occupy
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.format.link import Epoch, FenceLink, Tail, check_shape, first_epoch
from tidelog.wal.format.manifest import MANIFEST, Manifest, chain_of, encode_manifest, tail_of
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.slot_object import encode_fence
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.slot_protocol.burst import Burst, begin, note_answers, slots_to_fence
from tidelog.wal.slot_protocol.chain import Step, has_passed
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.link_reader import read_link

TRIES_MAX: Final = 100  # Openings or seals that other openers may overtake in a row.
LOOKS_MAX: Final = 3  # Looks at the manifest while waiting for the fenced writer's last roll-up.
SUCCESSOR_MAX: Final = 1_024  # Characters. The link of the seal carries them.
PUTS_MAX: Final = 600  # Puts at once. A round with more fences sends them in groups.
SLOTS_MAX: Final = 4_000  # For one lane. A manifest lags behind by far fewer slots.
LANES_MAX: Final = 64  # In a log with more lanes, the first unlisted lane ends the result.
LISTS_MAX: Final = 8  # Listings at once.


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """The result of ending an epoch: the manifest, the steps after it, and the tail after those.

    ``taken_from`` is the name of the writer whose epoch was open, or "" if that writer had closed.
    """

    head: Head
    steps: tuple[Step, ...]
    tail: Tail
    taken_from: str = ""


@dataclass(frozen=True, slots=True)
class _KnownLog:
    """The part of the log read so far: a manifest, the steps after it, and the tail or the seal."""

    head: Head
    steps: tuple[Step, ...]
    tail: Tail
    seal: Seal | None = None


@dataclass(slots=True, kw_only=True)
class Fencer:
    """An opener that ends epochs. ``writer`` is a name for people; its fences carry it.

    ``named`` collects the names of all epochs that its fences would open, whatever their outcome.
    ``resend`` limits how long it sends each fence again.
    """

    store: Store
    clock: Clock
    writer: str
    named: set[str] = field(default_factory=set)
    resend: Resend = DEFAULT_RESEND

    async def open(
        self, *, lanes: int, alpha: int, only_over: frozenset[str] | None = None
    ) -> EndedEpoch:
        """Begin a new epoch for this writer.

        ``only_over`` has names of epochs: if given, only one of these is ended. A writer whose put
        got no answer passes the names of its own epochs, so it never ends the epoch of a writer
        that took over.

        Raises:
            NoSuchLog: the log does not exist.
            LogSealed: the log is sealed.
            Fenced: the current epoch is not in ``only_over``.
            ContentionError: other openers were first at every try.
            UsageError: the log is full.
            CorruptionError: the log is broken.
            LocationError: the store failed.
        """
        check_shape(lanes=lanes, alpha=alpha)
        known = await self._look()
        for attempt in range(TRIES_MAX):
            if known.seal is not None:
                raise log_sealed(known.seal)
            if only_over is not None and known.tail.epoch.name not in only_over:
                # The manifest may not list this writer's newest epoch yet: read on before giving
                # up.
                known = await self._read_on(known)
                if known.seal is None and known.tail.epoch.name not in only_over:
                    raise fenced_by(known.tail.epoch)
                continue
            known.tail.refuse_full(epochs=1)
            following = Epoch(
                number=known.tail.epoch.number + 1,
                id=self.clock.unique()[:16],
                first_slot=known.tail.slot,  # A guess: the slot of the deciding fence replaces it.
                lanes=lanes,
                alpha=alpha,
                opener=self.writer,
            )
            self.named.add(following.name)
            is_free = chain_of(known.head.manifest).is_closed and not known.steps
            taken_from = "" if is_free else known.tail.epoch.opener
            known = await self._end(known, self._fence(known.tail, following, ""))
            if known.tail.epoch.name == following.name:
                return EndedEpoch(known.head, known.steps, known.tail, taken_from)
            if attempt and known.seal is None:
                await self.clock.sleep(backoff_us(attempt - 1, self.clock))
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries to open the log: other writers kept opening it "
            "first; try again"
        )

    async def seal(self, *, successor: str = "") -> Seal:
        """End the log: no process can append to it afterwards.

        Raises:
            UsageError: ``successor`` is not a str, or is too long.
            LogSealed: the log is sealed already.
            Otherwise see `open`.
        """
        if type(successor) is not str or len(successor) > SUCCESSOR_MAX:
            raise UsageError(
                f"successor must be a str of at most {SUCCESSOR_MAX} characters (empty for no "
                "successor)"
            )
        known = await self._look()
        for attempt in range(TRIES_MAX):
            if known.seal is not None:
                raise log_sealed(known.seal)
            fence = self._fence(known.tail, None, successor)
            ending = known.tail.epoch
            known = await self._end(known, fence)
            if known.seal is not None and await self._is_ours(ending, known.seal, fence):
                return known.seal
            if attempt and known.seal is None:
                await self.clock.sleep(backoff_us(attempt - 1, self.clock))
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries to seal the log: writers kept opening it first; try "
            "again"
        )

    def _fence(self, tail: Tail, following: Epoch | None, successor: str) -> FenceLink:
        return FenceLink(
            epoch=tail.epoch.name,
            slot=tail.slot,
            writer=self.writer,
            id=self.clock.unique()[:16] if following is None else following.id,
            next=following,
            reach=tail.slot + 1,
            seen=tail.slot,
            successor=successor,
        )

    async def _look(self) -> _KnownLog:
        head = await load_head(self.store)
        return _KnownLog(head, (), tail_of(head.manifest), chain_of(head.manifest).seal)

    async def _end(self, known: _KnownLog, fence: FenceLink) -> _KnownLog:
        """Fence the tail's epoch; return the log from there, whichever process ended the epoch."""
        begun_us = self.clock.monotonic_us()
        created, is_alive = await self._put_fences(known, fence)
        lowest = min(created, default=known.tail.slot)
        rtt_us = self.clock.monotonic_us() - begun_us
        newer = await self._look()
        for _ in range(LOOKS_MAX if is_alive else 0):
            # A writer that meets a fence rolls up all it committed. Reading that manifest is
            # cheaper than walking the same slots.
            tail = newer.tail
            if tail.epoch.name != fence.epoch or lowest - tail.slot <= known.tail.epoch.alpha:
                break
            await self.clock.sleep(rtt_us)
            newer = await self._look()
        return await self._read_on(_later(known, newer), fence, created)

    async def _put_fences(self, known: _KnownLog, fence: FenceLink) -> tuple[frozenset[int], bool]:
        """Put fences until one is stored; return the sure fences, and whether a writer is active.

        If a put is answered "exists", the fence is not sure even if the stored fence is this
        opener's. An earlier try of the same put may have been stored after the slot was collected.
        """
        tail = known.tail
        if chain_of(known.head.manifest).is_closed and not known.steps:
            # The writer states that it has closed, so one fence should do. The claim may be false,
            # and decides nothing else. If the fence meets data, the read after it finds the
            # data, and the next try uses bursts. Otherwise the opener might never end.
            done = await self._put(tail.epoch, tail.slot, fence)
            return frozenset([tail.slot] if done is KeyOwner.CREATED else []), False
        first, is_over = await self._first_free(tail)
        if is_over:
            return frozenset(), False
        burst, fence = begin(first, alpha=tail.epoch.alpha), replace(fence, seen=first)
        created: set[int] = set()
        while slots := slots_to_fence(burst):
            answers = await self._send(tail.epoch, burst, slots, fence)
            created |= {slot for slot, who in answers.items() if who is KeyOwner.CREATED}
            taken = frozenset(slot for slot, who in answers.items() if who is KeyOwner.OTHERS)
            burst = note_answers(burst, ours=frozenset(answers) - taken, taken=taken)
        return frozenset(created), bool(burst.taken)

    async def _first_free(self, tail: Tail) -> tuple[int, bool]:
        """Return the first slot that seems free, and whether a fence is at the tail already."""

        async def has_ended() -> int:
            with suppress(ObjectNotFound):
                link, _ = await read_link(self.store, tail.path)
                return isinstance(link, FenceLink)
            return False

        async def first_free() -> int:
            return await first_free_slot(self.store, tail)

        # If another opener's fence is at the tail, it has ended the epoch, and a burst is in vain.
        # The get runs with the listings, so it costs no further round trip.
        first, ended = await run_all([first_free, has_ended], at_once=2)
        return first, bool(ended)

    async def _send(
        self, ending: Epoch, burst: Burst, slots: Sequence[int], fence: FenceLink
    ) -> dict[int, KeyOwner]:
        named = replace(fence, reach=burst.reach)
        puts = [partial(self._put, ending, slot, named) for slot in slots]
        return dict(zip(slots, await run_all(puts, at_once=PUTS_MAX), strict=True))

    async def _put(self, ending: Epoch, slot: int, fence: FenceLink) -> KeyOwner:
        data = encode_fence(replace(fence, slot=slot))
        path = ending.path(slot)
        return await occupy(self.store, path, data, clock=self.clock, resend=self.resend)

    async def _read_on(
        self,
        known: _KnownLog,
        fence: FenceLink | None = None,
        created: frozenset[int] = frozenset(),
    ) -> _KnownLog:
        """Read the log on in slot order, to its end or to the fence of this opener.

        A fence that is not known to be older than the manifest is checked against a newer manifest.
        It may be stray: its slot may have been collected before the fence was put.
        """
        if known.seal is not None:
            return known
        steps, tail, seal = [*known.steps], known.tail, None
        walker = ChainReader(store=self.store, clock=self.clock)
        # After a fence was put, some object is in that epoch.
        seen = await walker.look(tail, ask_first=fence is None)
        async for passed in walker.links(tail, seen):
            met = passed.step
            if isinstance(met, Epoch):
                is_ours = fence is not None and (met.id, tail.epoch.name) == (fence.id, fence.epoch)
                if not (is_ours and tail.slot in created):
                    newer = await self._look()
                    if has_passed(newer.head.manifest, tail.epoch, tail.slot, met.name):
                        return newer
            if isinstance(met, Seal):
                seal = met
            steps.append(met)
            tail = passed.tail
            if fence is not None and isinstance(met, Epoch) and met.id == fence.id:
                # This opener's own. If another one has taken over since, the first append finds
                # out.
                break
        return _KnownLog(known.head, tuple(steps), tail, seal)

    async def _is_ours(self, ending: Epoch, seal: Seal, fence: FenceLink) -> bool:
        """Return True if this process put the seal."""
        with suppress(ObjectNotFound):
            link, _ = await read_link(self.store, ending.path(seal.slot))
            return isinstance(link, FenceLink) and link.id == fence.id
        return False


def _later(known: _KnownLog, newer: _KnownLog) -> _KnownLog:
    """Return the state that is further on: the one read before, or a newer manifest.

    Prefer the newer manifest unless it is behind, because it was read after the fence was put. Only
    such a manifest proves that the fenced slot was not collected before.
    """
    if not known.steps or newer.seal is not None:
        return newer
    here, there = known.tail, newer.tail
    is_behind = (there.slot, there.epoch.number) < (here.slot, here.epoch.number)
    return known if is_behind else newer


def fenced_by(epoch: Epoch) -> Fenced:
    """Return the error of a writer whose epoch was ended by the opener of ``epoch``."""
    return Fenced(
        "another writer took over the log: stop, or open the log again to take it back",
        by=repr(epoch.opener),
        slot=epoch.first_slot,
    )


async def make_log(store: Store, *, clock: Clock, writer: str) -> bool:
    """Create a log if it does not exist; return True if this call created it.

    No process writes to its first epoch: the first opener ends that epoch.
    """
    genesis = first_epoch(id=clock.unique()[:16], opener=writer)
    manifest = Manifest(writer=writer, chain=Chain(epochs=(genesis,), is_closed=True))
    data = encode_manifest(manifest)
    return await create_or_read(store, MANIFEST, data, clock=clock) == data


def log_sealed(seal: Seal) -> LogSealed:
    """Return the error of an append to a sealed log."""
    where = f": append to {seal.successor}" if seal.successor else ""
    return LogSealed(f"the log is sealed, and refuses appends{where}", slot=seal.slot)


def over(after: Epoch | Seal) -> TidelogError:
    """Return the error of a writer whose epoch was ended by another process."""
    return log_sealed(after) if isinstance(after, Seal) else fenced_by(after)


async def first_free_slot(store: Store, tail: Tail) -> int:
    """Return the first slot at or after the tail's that seems free in the tail's epoch.

    An opener that followed the log slot by slot might never reach the end of a log that is written
    as fast as it is read. The listings give a fixed bound instead.

    This takes one request for each lane. All lower slots were taken when the listing began. The
    returned slot was certainly free at that time if the log is less than 4,000 slots of each lane
    past the tail.

    Raises:
        LocationError: the store failed.
    """
    epoch = tail.epoch
    lanes = range(min(epoch.lanes, LANES_MAX))
    work = [partial(_slots_of, store, epoch, tail.slot + lane) for lane in lanes]
    taken = set[int]().union(*await run_all(work, at_once=LISTS_MAX))
    slot = tail.slot
    while slot in taken:
        slot += 1
    return slot


async def _slots_of(store: Store, epoch: Epoch, first: int) -> set[int]:
    """Return the slots of one lane, from ``first`` to the slot before the first gap."""
    expected, found = first, set[int]()
    after = epoch.path(first)
    folder = after.rsplit("/", 1)[0] + "/"
    # ``after`` excludes its key, so list after the key of the slot below the first one.
    before = f"{folder}{first - 1:016x}.parquet" if first else None
    async for entry in store.list(folder, after=before):
        place = place_of(entry.key)
        if place is None or place.slot < first:
            continue
        if place.slot != expected or len(found) == SLOTS_MAX:
            break
        found.add(expected)
        expected += epoch.lanes
    return found
