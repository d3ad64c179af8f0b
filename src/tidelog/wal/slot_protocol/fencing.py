"""Opening a slot log for writing, and sealing it: both end an epoch with fences.

One listing shows how far the epoch has come; fences go from the first free slot on, and some far
ahead (`tidelog.wal.slot_protocol.burst`), until one stands where the writer has not been. Only then
is the log read on, in slot order: the first fence that is met decides. It is read on from a
manifest that was read after the fence stood. Had the log gone past that slot, the slot would have
been empty only because what it held was collected, and the walk would not come by it.

Invariants: the epoch is ours only if its fence is the first in slot order, and was there before
anything at or after it was collected. Whoever was fenced by another opens nothing over that.
Source: wal3-draft, "Fencing"; design page 3, "Open for writing"; docs/decisions/0010.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tidelog.clock import Clock, backoff_us, run_all
from tidelog.errors import (
    ContentionError,
    Fenced,
    LogSealed,
    ObjectNotFound,
    TidelogError,
    UsageError,
)
from tidelog.store.conditional import DEFAULT_RESEND, Occupied, Resend, create_or_read, occupy
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Epoch, check_shape, first_epoch
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.format.link import FenceLink, Tail
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.slot_object import encode_fence
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.slot_protocol.burst import Burst, begin, note_answers, slots_to_fence
from tidelog.wal.slot_protocol.chain import (
    Step,
    chain_of,
    has_passed,
    refuse_full,
    tail_of,
)
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.link_reader import read_link
from tidelog.wal.slot_protocol.tail_listing import first_free_slot

TRIES_MAX: Final = 100
LOOKS_MAX: Final = 3  # At the manifest, for a writer that was fenced to bring it to its end.
SUCCESSOR_MAX: Final = 1_024
PUTS_MAX: Final = 600  # Side by side: more than the fences of any one round.


@dataclass(frozen=True, slots=True)
class Ended:
    """An epoch was ended by our fence: the manifest then, the steps from it on, the tail after.

    ``taken_from`` is the name of the writer whose epoch was open; "" if it closed the log.
    """

    head: Head
    steps: tuple[Step, ...]
    tail: Tail
    taken_from: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """How far the log was read: from a manifest on, by these steps, to this tail or seal."""

    head: Head
    steps: tuple[Step, ...]
    tail: Tail
    seal: Seal | None = None


@dataclass(slots=True, kw_only=True)
class Fencer:
    """Ends epochs. ``writer`` is a name for people, in what it writes.

    ``named`` has the names of all epochs that its fences would open, whatever became of them;
    ``resend`` is how long each fence is sent again.
    """

    store: Store
    clock: Clock
    writer: str
    named: set[str] = field(default_factory=set)
    resend: Resend = DEFAULT_RESEND

    async def open(
        self, *, lanes: int, alpha: int, only_over: frozenset[str] | None = None
    ) -> Ended:
        """Begin an epoch of one's own.

        ``only_over`` are names of epochs: no other is ended. So a writer goes on after a doubt, and
        never over the epoch of one who has taken over from it.

        Raises:
            NoSuchLog: there is none. LogSealed: it takes no more records. Fenced: the log's epoch
            is another than ``only_over`` allows. ContentionError: others were first every time.
            UsageError: the log is full. CorruptionError, LocationError: as everywhere.
        """
        check_shape(lanes=lanes, alpha=alpha)
        known = await self._look()
        for attempt in range(TRIES_MAX):
            if known.seal is not None:
                raise log_sealed(known.seal)
            if only_over is not None and known.tail.epoch.name not in only_over:
                # The manifest may not have come to an epoch of one's own yet.
                known = await self._read_on(known)
                if known.seal is None and known.tail.epoch.name not in only_over:
                    raise fenced_by(known.tail.epoch)
                continue
            refuse_full(known.tail, epochs=1)
            following = Epoch(
                number=known.tail.epoch.number + 1,
                id=self.clock.unique()[:16],
                first_slot=known.tail.slot,  # Or wherever the fence that decides will stand.
                lanes=lanes,
                alpha=alpha,
                opener=self.writer,
            )
            self.named.add(following.name)
            is_free = chain_of(known.head.manifest).is_closed and not known.steps
            taken_from = "" if is_free else known.tail.epoch.opener
            known = await self._end(known, self._fence(known.tail, following, ""))
            if known.tail.epoch.name == following.name:
                return Ended(known.head, known.steps, known.tail, taken_from)
            if attempt and known.seal is None:
                await self.clock.sleep(backoff_us(attempt - 1, self.clock))
        raise ContentionError("others were first at every try to open the log")

    async def seal(self, *, successor: str = "") -> Seal:
        """End the log: from then on it takes no record, in any process.

        Raises:
            UsageError: ``successor`` is no text, or too long a one. LogSealed: it is already.
            Otherwise as `open`.
        """
        if type(successor) is not str or len(successor) > SUCCESSOR_MAX:
            raise UsageError(
                f"the successor of a log is a text of at most {SUCCESSOR_MAX} characters, empty if "
                "there is none"
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
        raise ContentionError("others were first at every try to seal the log")

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

    async def _look(self) -> _Known:
        head = await load_head(self.store)
        return _Known(head, (), tail_of(head.manifest), chain_of(head.manifest).seal)

    async def _end(self, known: _Known, fence: FenceLink) -> _Known:
        """Fence the epoch of the tail, and return how the log then goes on, whoever ended it."""
        begun_us = self.clock.monotonic_us()
        created, is_alive = await self._put_fences(known, fence)
        lowest = min(created, default=known.tail.slot)
        rtt_us = self.clock.monotonic_us() - begun_us
        newer = await self._look()
        for _ in range(LOOKS_MAX if is_alive else 0):
            # A writer that meets a fence brings the manifest to its end: that is read, not walked.
            tail = newer.tail
            if tail.epoch.name != fence.epoch or lowest - tail.slot <= known.tail.epoch.alpha:
                break
            await self.clock.sleep(rtt_us)
            newer = await self._look()
        return await self._read_on(_later(known, newer), fence, created)

    async def _put_fences(self, known: _Known, fence: FenceLink) -> tuple[frozenset[int], bool]:
        """Put fences until one stands; return where that is sure, and whether somebody was writing.

        Where a put was answered "exists" it is not sure that the fence stands, even if it is ours:
        an earlier try of the same put may have landed in a slot that had been collected.
        """
        tail = known.tail
        if chain_of(known.head.manifest).is_closed and not known.steps:
            # Nobody writes: one fence will do. If it does not, the next try is by bursts.
            done = await self._put(tail.epoch, tail.slot, fence)
            return frozenset([tail.slot] if done is Occupied.CREATED else []), False
        first, is_over = await self._first_free(tail)
        if is_over:
            return frozenset(), False
        burst, fence = begin(first, alpha=tail.epoch.alpha), replace(fence, seen=first)
        created: set[int] = set()
        while slots := slots_to_fence(burst):
            answers = await self._send(tail.epoch, burst, slots, fence)
            created |= {slot for slot, who in answers.items() if who is Occupied.CREATED}
            taken = frozenset(slot for slot, who in answers.items() if who is Occupied.OTHERS)
            burst = note_answers(burst, ours=frozenset(answers) - taken, taken=taken)
        return frozenset(created), bool(burst.taken)

    async def _first_free(self, tail: Tail) -> tuple[int, bool]:
        """Return the first slot that seems free; and whether the epoch has ended at the tail."""

        async def has_ended() -> int:
            with suppress(ObjectNotFound):
                link, _ = await read_link(self.store, tail.path)
                return isinstance(link, FenceLink)
            return False

        async def first_free() -> int:
            return await first_free_slot(self.store, tail)

        first, ended = await run_all([first_free, has_ended], at_once=2)
        return first, bool(ended)

    async def _send(
        self, ending: Epoch, burst: Burst, slots: Sequence[int], fence: FenceLink
    ) -> dict[int, Occupied]:
        named = replace(fence, reach=burst.reach)
        puts = [partial(self._put, ending, slot, named) for slot in slots]
        return dict(zip(slots, await run_all(puts, at_once=PUTS_MAX), strict=True))

    async def _put(self, ending: Epoch, slot: int, fence: FenceLink) -> Occupied:
        data = encode_fence(replace(fence, slot=slot))
        path = ending.path(slot)
        return await occupy(self.store, path, data, clock=self.clock, resend=self.resend)

    async def _read_on(
        self, known: _Known, fence: FenceLink | None = None, created: frozenset[int] = frozenset()
    ) -> _Known:
        """Read the log on, in slot order: to its end, or the fence that was put here.

        A fence that was not known to stand before the manifest was read is looked at again: it may
        lie in a slot that was collected since, and leads astray then.
        """
        if known.seal is not None:
            return known
        steps, tail, seal = [*known.steps], known.tail, None
        walker = ChainReader(store=self.store, clock=self.clock)
        seen = await walker.look(tail, ask_first=fence is None)  # Where it stands, something is.
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
                break  # Ours. Whoever has taken over since is met by the first append.
        return _Known(known.head, tuple(steps), tail, seal)

    async def _is_ours(self, ending: Epoch, seal: Seal, fence: FenceLink) -> bool:
        """Say whether a seal is the one that was put here."""
        with suppress(ObjectNotFound):
            link, _ = await read_link(self.store, ending.path(seal.slot))
            return isinstance(link, FenceLink) and link.id == fence.id
        return False


def _later(known: _Known, newer: _Known) -> _Known:
    """Return what leads further of what was read before and a newer manifest.

    Always the manifest, for that is what says that a slot which was fenced had not been collected.
    """
    if not known.steps or newer.seal is not None:
        return newer
    here, there = known.tail, newer.tail
    is_behind = (there.slot, there.epoch.number) < (here.slot, here.epoch.number)
    return known if is_behind else newer


def fenced_by(epoch: Epoch) -> Fenced:
    """Return the error of a writer whose epoch was ended by the opener of another."""
    return Fenced(
        "another writer took over the log: stop, or open it again if you mean to take it back",
        by=repr(epoch.opener),
        slot=epoch.first_slot,
    )


async def make_log(store: Store, *, clock: Clock, writer: str) -> bool:
    """Make a log, unless there is one; say whether it was made.

    Nobody writes into its first epoch: the first to open it ends that.
    """
    genesis = first_epoch(id=clock.unique()[:16], opener=writer)
    manifest = Manifest(writer=writer, chain=Chain(epochs=(genesis,), is_closed=True))
    data = encode_manifest(manifest)
    return await create_or_read(store, MANIFEST, data, clock=clock) == data


def log_sealed(seal: Seal) -> LogSealed:
    """Return the error of a log that is sealed."""
    where = f": go on in {seal.successor}" if seal.successor else ""
    return LogSealed(f"the log is sealed, and takes no more records{where}", slot=seal.slot)


def over(after: Epoch | Seal) -> TidelogError:
    """Return what a writer says whose epoch was ended by another."""
    return log_sealed(after) if isinstance(after, Seal) else fenced_by(after)
