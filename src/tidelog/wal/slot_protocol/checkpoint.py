"""Roll-up of a slot log: replace the manifest by one that lists the newly committed slots.

A roll-up bounds how far readers must walk. Acknowledgements do not wait for it. A process that
loses the race to replace the manifest loses nothing: the winner's manifest lists the same objects.
Source: wal3-draft, "Manifests"; design page 3, "Roll-up".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Final

from tidelog.core.clock import Clock, backoff_us
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
from tidelog.wal.format.manifest import Manifest, chain_of, tail_of
from tidelog.wal.format.manifest_update import Rollover, roll_over
from tidelog.wal.format.snapshot import Snapshot, object_of
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.slot_protocol.chain import Step, close, extend
from tidelog.wal.slot_protocol.chain_reader import ChainReader

TRIES_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointer:
    """The roll-ups of one log. ``writer`` is a name for people; manifests carry it."""

    store: Store
    clock: Clock
    writer: str
    rollover: Rollover = field(default_factory=Rollover)

    async def roll_up(
        self, head: Head, steps: Sequence[Step], *, closing: Tail | None = None
    ) -> Head:
        """Add the steps of a walk to the manifest; return the manifest that has them.

        ``closing`` is the tail of a writer that will append nothing more. If the log ends there,
        the manifest records the close, and the next opener needs a single fence.

        Raises:
            ContentionError: other processes replaced the manifest at every try.
            CorruptionError: the steps do not continue the manifest.
            LocationError: the store failed.
        """
        for _ in range(TRIES_MAX):
            try:
                return await self.replace_once(head, steps, closing=closing)
            except ManifestMoved:
                head = await load_head(self.store)
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries to roll up the log: other processes kept replacing "
            "the manifest; try again"
        )

    async def replace_once(
        self, head: Head, steps: Sequence[Step], *, closing: Tail | None = None
    ) -> Head:
        """Add steps to the manifest that the caller read, in one try.

        Raises:
            ManifestMoved: another process replaced the manifest, or the outcome is unknown.
            Otherwise see `roll_up`.
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
            raise ManifestMoved("another process replaced the manifest: read it again") from error


async def roll_up_tail(store: Store, *, clock: Clock, writer: str) -> Head:
    """Add all committed slots of all writers to a log's manifest; return the manifest.

    In wal3's protocol the manifest already lists everything, so it is returned unchanged.

    Raises:
        NoSuchLog: the log does not exist.
        ContentionError: other processes replaced the manifest at every try.
        CorruptionError: the log is broken.
        LocationError: the store failed.
    """
    target: Tail | None = None
    is_sealed = False
    for attempt in range(TRIES_MAX):
        if attempt:
            await clock.sleep(backoff_us(attempt - 1, clock))
        head = await load_head(store)
        # A busy writer rolls up too. Its manifest is enough once it has the tail that this call saw
        # first.
        chain = head.manifest.chain
        if chain is None or (
            target is not None
            and _is_past(head.manifest, target)
            and (chain.seal is not None or not is_sealed)  # A seal does not move the tail.
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
        # Unless the manifest is unchanged, the walk may have met objects that a late writer put
        # into collected slots. These are not part of the log.
        if (await load_head(store)).e_tag == head.e_tag:
            with suppress(ContentionError):
                return await Checkpointer(store=store, clock=clock, writer=writer).replace_once(
                    head, steps
                )
    raise ContentionError(
        f"gave up after {TRIES_MAX} tries to roll up the log: other processes kept replacing the "
        "manifest; try again"
    )


def _is_past(manifest: Manifest, tail: Tail) -> bool:
    return (manifest.next_seq_no, chain_of(manifest).last.number) >= (
        tail.slot,
        tail.epoch.number,
    )


def roll_all(
    manifest: Manifest, rollover: Rollover, *, writer: str, maker: str = ""
) -> tuple[Manifest, list[Snapshot]]:
    """Roll over until no threshold is exceeded; return the new snapshots in storing order.

    For ``maker`` see `snapshot_path`.
    """
    snapshots: list[Snapshot] = []
    while True:
        manifest, snapshot = roll_over(manifest, rollover, writer=writer, maker=maker)
        if snapshot is None:
            return manifest, snapshots
        snapshots.append(snapshot)


def _streams_continue(before: Manifest, after: Manifest) -> bool:
    """Return True if each stream open after was open before, or was opened since."""
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
        CorruptionError: the new manifest would lose or change something. NOT_APPLIED.
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
            "the log's new objects do not continue its manifest, and nothing was written: scrub "
            "the log, and restore the objects that the scrub names"
        )
