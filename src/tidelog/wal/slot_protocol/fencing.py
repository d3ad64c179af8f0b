"""Opening a slot log for writing, and sealing it: both end an epoch with a burst of fences.

A writer of the epoch has at most alpha puts under way from the first missing slot on; so of alpha
fences from there on one decides, or all of those slots hold data, and one looks again. Answers are
taken in slot order. Before a fence is believed, the manifest is read again: if it has gone past the
slot without that fence, the slot was empty only because what it held was collected.

Invariants: the epoch is ours only if its fence is the first in slot order, and was there before
anything at or after it was collected.
Source: wal3-draft, "Fencing"; design page 3, "Open for writing".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidelog.clock import Clock, run_all
from tidelog.errors import ContentionError, LogSealed
from tidelog.store.port import Store
from tidelog.wal.format.epoch import FIRST_SLOT, Chain, Epoch, Seal, check_shape
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import FenceLink, Tail
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.slot_object import decode_link, encode_fence
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.slot_protocol.chain import Step, chain_of, has_passed, step, tail_of
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.settle import settle

TRIES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Ended:
    """An epoch was ended by our fence: the manifest then, the steps from it on, the tail after."""

    head: Head
    steps: tuple[Step, ...]
    tail: Tail


@dataclass(slots=True, kw_only=True)
class Fencer:
    """Ends epochs. ``writer`` is a name for people, in what it writes."""

    store: Store
    clock: Clock
    writer: str

    async def open(self, *, lanes: int, alpha: int) -> Ended:
        """Begin an epoch of one's own.

        Raises:
            NoSuchLog: there is none. LogSealed: it takes no more records. ContentionError: others
            were first every time. CorruptionError, LocationError: as everywhere.
        """
        check_shape(lanes=lanes, alpha=alpha)

        for _ in range(TRIES_MAX):
            head = await load_head(self.store)
            steps, tail = await self._walk(head)
            following = Epoch(
                number=tail.epoch.number + 1,
                id=self.clock.unique()[:16],
                first_slot=tail.slot,  # Or wherever the fence that decides will stand.
                lanes=lanes,
                alpha=alpha,
                opener=self.writer,
            )
            ended = await self._end(head, steps, tail, following, "")
            if ended is not None:
                return ended
        raise ContentionError("others were first at every try to open the log")

    async def seal(self, *, successor: str = "") -> Seal:
        """End the log: from then on it takes no record, in any process.

        Raises:
            LogSealed: it is already. Otherwise as `open`.
        """
        for _ in range(TRIES_MAX):
            head = await load_head(self.store)
            steps, tail = await self._walk(head)
            ended = await self._end(head, steps, tail, None, successor)
            if ended is not None:
                return Seal(slot=ended.tail.slot, successor=successor)
        raise ContentionError("others were first at every try to seal the log")

    async def _walk(self, head: Head) -> tuple[list[Step], Tail]:
        tail, steps = tail_of(head.manifest), list[Step]()
        if (seal := chain_of(head.manifest).seal) is not None:
            raise log_sealed(seal)
        walker = ChainReader(store=self.store, clock=self.clock)
        async for passed in walker.walk(tail):
            steps.append(passed.step)
            tail = passed.tail
            if isinstance(passed.step, Seal):
                raise log_sealed(passed.step)
        return steps, tail

    async def _end(
        self,
        head: Head,
        steps: list[Step],
        tail: Tail,
        following: Epoch | None,
        successor: str,
    ) -> Ended | None:
        """Send a burst of fences at the tail; None if it did not end the epoch."""
        ending = tail.epoch
        fence = FenceLink(
            epoch=ending.name,
            slot=0,
            writer=self.writer,
            id=self.clock.unique()[:16] if following is None else following.id,
            next=following,
            successor=successor,
        )
        slots = range(tail.slot, tail.slot + ending.alpha)
        bodies = [encode_fence(replace(fence, slot=slot)) for slot in slots]
        puts = [
            partial(settle, self.store, ending.path(slot), body, clock=self.clock)
            for slot, body in zip(slots, bodies, strict=True)
        ]
        found = await run_all(puts, at_once=len(puts))
        decided = decide(tail, bodies, found)
        if decided is None:
            return None
        met, tail = decided
        if has_passed(
            (await load_head(self.store)).manifest,
            ending,
            tail.slot,
            None if following is None else following.name,
        ):
            return None
        return Ended(head, (*steps, *met), tail)


def decide(
    tail: Tail, ours: Sequence[bytes], found: Sequence[bytes]
) -> tuple[list[Step], Tail] | None:
    """Take what a burst of fences met, in slot order: the first fence decides.

    Gives the steps up to our own fence and the tail after it; None if another's stands before it,
    or there is none yet.

    Raises:
        CorruptionError: what is there does not continue the log.
    """
    steps: list[Step] = []
    for own, there in zip(ours, found, strict=True):
        tail, met = step(tail, decode_link(there, path=tail.path), len(there))
        steps.append(met)
        if own == there:
            return steps, tail
        if not isinstance(met, Fragment):
            return None
    return None


async def make_log(store: Store, *, clock: Clock, writer: str) -> bool:
    """Make a log, unless there is one; say whether it was made.

    Nobody writes into its first epoch: the first to open it ends that.
    """
    genesis = Epoch(number=0, id=clock.unique()[:16], first_slot=FIRST_SLOT, opener=writer)
    manifest = Manifest(writer=writer, chain=Chain(epochs=(genesis,)))
    data = encode_manifest(manifest)
    return await settle(store, MANIFEST, data, clock=clock) == data


def log_sealed(seal: Seal) -> LogSealed:
    """Return the error of a log that is sealed."""
    where = f": go on in {seal.successor}" if seal.successor else ""
    return LogSealed(f"the log is sealed, and takes no more records{where}", slot=seal.slot)
