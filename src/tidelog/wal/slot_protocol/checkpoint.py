"""Rolling up a slot log: its manifest is replaced by one that names what was committed since.

This bounds how far others have to walk, and is on nobody's way to an acknowledgement. Whoever
loses the race to replace the manifest has lost nothing: the winner's names the same objects.
Source: wal3-draft, "Manifests"; design page 3, "Roll-up".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Final

from tidelog.clock import Clock, backoff_us
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    ManifestMoved,
    OutcomeUnknown,
)
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.epoch_list import shorten
from tidelog.wal.format.link import Tail
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.manifest_update import Rollover, roll_over
from tidelog.wal.format.snapshot import Snapshot, object_of
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.slot_protocol.chain import Step, chain_of, close, extend, tail_of
from tidelog.wal.slot_protocol.chain_reader import ChainReader

TRIES_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointer:
    """Rolls up one log. ``writer`` is a name for people, in what it writes."""

    store: Store
    clock: Clock
    writer: str
    rollover: Rollover = field(default_factory=Rollover)

    async def roll_up(
        self, head: Head, steps: Sequence[Step], *, closing: Tail | None = None
    ) -> Head:
        """Bring steps of a walk into the manifest; return the manifest that has them.

        ``closing`` is the tail of a writer that will never put anything there: if the log ends
        there, the manifest says so, and the next to open it needs a single fence.

        Raises:
            ContentionError: others were first every time. CorruptionError: the steps do not
            continue the manifest. LocationError: the store failed.
        """
        for _ in range(TRIES_MAX):
            try:
                return await self.replace_once(head, steps, closing=closing)
            except ManifestMoved:
                head = await load_head(self.store)
        raise ContentionError("others replaced the manifest at every try to roll the log up")

    async def replace_once(
        self, head: Head, steps: Sequence[Step], *, closing: Tail | None = None
    ) -> Head:
        """Bring steps into the manifest as it was read, or into none.

        Raises:
            ManifestMoved: another was first, or that may be. Otherwise see `roll_up`.
        """
        extended = extend(head.manifest, steps, writer=self.writer)
        if closing is not None:
            extended = close(extended, closing)
        if extended is head.manifest:
            return head
        check_continues(head.manifest, extended)
        manifest, snapshots = roll_all(extended, self.rollover, writer=self.writer)
        chain, lists = shorten(chain_of(manifest))
        change = Change(changed(manifest, chain=chain), (*map(object_of, snapshots), *lists))
        try:
            return await ManifestStore(store=self.store, clock=self.clock).replace(head, change)
        except OutcomeUnknown as error:
            raise ManifestMoved("another replaced the manifest: read it again") from error


async def roll_up_tail(store: Store, *, clock: Clock, writer: str) -> Head:
    """Bring all that is committed into a log's manifest, whoever wrote it; return that.

    A log in wal3's form has nothing else in it.

    Raises:
        NoSuchLog: there is none. ContentionError: others were first every time. CorruptionError,
        LocationError: as everywhere.
    """
    target: Tail | None = None
    is_sealed = False
    for attempt in range(TRIES_MAX):
        if attempt:
            await clock.sleep(backoff_us(attempt - 1, clock))
        head = await load_head(store)
        # Where a writer is busy it rolls up itself: what was there at first is all that is asked.
        chain = head.manifest.chain
        if chain is None or (
            target is not None
            and _is_past(head.manifest, target)
            and (chain.seal is not None or not is_sealed)  # A seal has the slot that comes next.
        ):
            return head
        tail, steps = tail_of(head.manifest), list[Step]()
        walker = ChainReader(store=store, clock=clock)
        try:
            async for passed in walker.links(tail, await walker.look(tail)):
                steps.append(passed.step)
                tail = passed.tail
        except CorruptionError:
            if (await load_head(store)).e_tag == head.e_tag:
                raise
            continue
        if target is None:
            target, is_sealed = tail, any(isinstance(one, Seal) for one in steps)
        # What a sleeper put into slots that had been collected is no part of the log.
        if (await load_head(store)).e_tag == head.e_tag:
            with suppress(ContentionError):
                return await Checkpointer(store=store, clock=clock, writer=writer).replace_once(
                    head, steps
                )
    raise ContentionError("others replaced the manifest at every try to roll the log up")


def _is_past(manifest: Manifest, tail: Tail) -> bool:
    return (manifest.next_seq_no, chain_of(manifest).last.number) >= (
        tail.slot,
        tail.epoch.number,
    )


def roll_all(
    manifest: Manifest, rollover: Rollover, *, writer: str, maker: str = ""
) -> tuple[Manifest, list[Snapshot]]:
    """Roll over as often as the thresholds ask for; return the snapshots in the order to store.

    For ``maker`` see `snapshot_path`.
    """
    snapshots: list[Snapshot] = []
    while True:
        manifest, snapshot = roll_over(manifest, rollover, writer=writer, maker=maker)
        if snapshot is None:
            return manifest, snapshots
        snapshots.append(snapshot)


def _streams_continue(before: Manifest, after: Manifest) -> bool:
    """Say whether streams that are open after are those from before, or were opened since."""
    one, other = chain_of(before).streams, chain_of(after).streams
    if before.next == after.next:
        return one == other
    opened = {info.id: info.position for info in one}
    return all(
        info.position >= before.next or opened.get(info.id) == info.position for info in other
    )


def check_continues(before: Manifest, after: Manifest) -> None:
    """Refuse to replace a manifest by one that does not continue it.

    Raises:
        CorruptionError: it would lose or change something.
    """
    one, other = chain_of(before), chain_of(after)
    kept = (
        before.collected == after.collected
        and before.oldest == after.oldest
        and before.next <= after.next
        and before.acc_bytes <= after.acc_bytes
        and other.past == one.past
        and other.epochs[: len(one.epochs)] == one.epochs
        and one.seal in (None, other.seal)
        and one.streams_at_start == other.streams_at_start
        and _streams_continue(before, after)
    )
    if not kept:
        raise CorruptionError(
            "a manifest would not continue the one before it: nothing was written"
        )
