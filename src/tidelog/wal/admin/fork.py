"""Forks of a slot log: a new log that begins with the same records, and shares their objects.

The fork has the source's positions, sums and fragments; its epochs state which log holds the
fragments. It writes snapshots and a manifest of its own. Afterwards the only connection is a pin in
the source with the fork's name, which holds the shared objects. The pin shrinks as the fork is
collected.

Invariants: the pin is sure before the fork's manifest is written, and is written once more after
that. So a fork that is a log has all objects that it names. A fork never deletes objects that it
shares.
Source: design page 3, "Manifest tree, setsum, cursors, collection".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from tidelog.core.clock import Clock, run_all
from tidelog.errors import (
    ContentionError,
    LocationError,
    LogSealed,
    NameTaken,
    NoSuchLog,
    ObjectChanged,
    ObjectExists,
    Outcome,
    OutcomeUnknown,
    TidelogError,
    UsageError,
)
from tidelog.store.keys import Within
from tidelog.store.listing import first_entry
from tidelog.wal.admin.destroy import destroy_log
from tidelog.wal.format.epoch_chain import Chain, Origin
from tidelog.wal.format.epoch_list import shorten
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import EPOCHS, Epoch
from tidelog.wal.format.manifest import Manifest, chain_of, overlaps, path_of
from tidelog.wal.format.manifest_update import pointer_to, snapshot_over
from tidelog.wal.format.pin import Pin, check_pin_name
from tidelog.wal.format.snapshot import Pointer, object_of, sum_of
from tidelog.wal.gc.pin_objects import PinWitness, read_pin
from tidelog.wal.gc.pins import Pins
from tidelog.wal.read.epoch_history import with_all_epochs
from tidelog.wal.read.head import TreeReader, collected, has_manifest, load_head
from tidelog.wal.read.manifest_store import ManifestStore
from tidelog.wal.read.named_objects import store_named
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.fencing import Fencer
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.stream_history import streams_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A fork of the log ``source`` with the name ``name``. ``writer`` is a name for people."""

    store: Within
    source: str
    name: str
    clock: Clock
    writer: str

    async def make(self, *, start: int = 0) -> Manifest:
        """Fork from ``start`` on, by default all retained records; return the fork's manifest.

        The fragment that contains ``start`` is shared as a whole.

        Raises:
            UsageError: the name is not valid for a pin, the source has no such position, or it is
            in wal3's form.
            NameTaken: a log has the name, also one without its manifest, or a pin that no fork
            made.
            NoSuchLog: the source does not exist, or was dropped.
            PositionCollected: ``start`` was collected.
            ContentionError: the source is being destroyed, or another process released the pin
            concurrently.
            OutcomeUnknown: a store failed, and the fork may exist.
            LocationError: a store failed.
        """
        check_pin_name(self.name, of="fork")
        target = self.store.sibling(self.name)
        if await has_manifest(target):
            raise NameTaken(f"a log named {self.name!r} already exists: choose another name")
        if await first_entry(target, EPOCHS) is not None:
            raise NameTaken(
                f"a log named {self.name!r} has records but no manifest: choose another name"
            )
        head = await roll_up_tail(self.store, clock=self.clock, writer=self.writer)
        refuse_unshareable(head.manifest, start)
        if head.manifest.oldest == head.manifest.next:
            return await self._store(target, await self._prepared(target, head.manifest, None))
        limit = head.manifest.next
        held = await self._pins.create(self.name, start=start, limit=limit, holder=self.name)
        try:
            manifest = await self._prepared(target, head.manifest, held.pin)
            manifest = await self._store(target, manifest)
        except TidelogError as error:
            # Otherwise the fork may exist, and need the pin.
            if error.outcome is Outcome.NOT_APPLIED:
                with suppress(TidelogError):
                    await self._pins.let_go(held, limit)
            raise
        await self._demand_held(target, manifest, held)
        with suppress(TidelogError):  # A pin that is left goes when the fork is collected.
            await self._pins.release_others(held)
        return manifest

    async def _prepared(self, target: Within, source: Manifest, pin: Pin | None) -> Manifest:
        """Store the objects that the fork's manifest will name; return the manifest."""
        known = await with_all_epochs(self.store, chain_of(source))
        chain = self._chain(known.chain, pin, source.next_seq_no)
        kept: list[Pointer | Fragment] = []
        if pin is not None:
            kept = await self._carry(target, await self._with_newest(pin), chain, pin)
        chain = await self._with_streams(chain, source, kept)
        chain, lists = shorten(chain)
        for one in lists:
            await store_named(target, one, clock=self.clock)
        return manifest_of_fork(source, kept, chain, writer=self.writer)

    async def _store(self, target: Within, manifest: Manifest) -> Manifest:
        """Create the fork by writing its manifest."""
        taken = NameTaken(
            f"another process created a log named {self.name!r} concurrently: choose another name"
        )
        try:
            await ManifestStore(store=target, clock=self.clock).create(manifest)
        except ObjectExists as error:
            raise taken from error
        except OutcomeUnknown as error:
            # Another process has replaced this manifest, or another fork's.
            there = (await load_head(target)).manifest.chain
            epochs = () if there is None else (await with_all_epochs(target, there)).chain.epochs
            if chain_of(manifest).last.name not in {epoch.name for epoch in epochs}:
                raise taken from error
        return manifest

    async def _demand_held(self, target: Within, manifest: Manifest, held: PinWitness) -> None:
        """Write the pin once more, now that every process can see for which log it holds.

        Another process may have released it because it seemed abandoned, and the records may be
        deleted. A later release finds the fork.

        Raises:
            ContentionError: the pin was released, and the fork was undone.
            OutcomeUnknown: the fork could not be undone, or other writers have appended to it:
            destroy it.
        """
        now: PinWitness | None = held
        while now is not None and now.pin.start == held.pin.start:
            try:
                await self._pins.confirm(now)
            except ObjectChanged:
                now = await read_pin(self.store, held.pin.path)
            else:
                return
        # A collection of the fork may have shrunk the pin.
        newest = (await load_head(target)).manifest
        if now is not None and now.pin.is_held and now.pin.start <= newest.oldest:
            return
        try:
            if not chain_of(newest).is_destroyed:
                await self._undo(target, manifest)
        except LocationError as error:
            raise OutcomeUnknown(
                "another process dropped the fork's pin during the fork, and the fork could not "
                "be undone: drop the fork",
                log=self.name,
                reason=error,
            ) from error
        raise ContentionError(
            "another process dropped the fork's pin during the fork, so the fork was undone: fork "
            "again under another name",
            log=self.name,
        )

    async def _undo(self, target: Within, manifest: Manifest) -> None:
        with suppress(LogSealed):
            await Fencer(store=target, clock=self.clock, writer=self.writer).seal()
        end = await roll_up_tail(target, clock=self.clock, writer=self.writer)
        if end.manifest.next > manifest.next:
            raise OutcomeUnknown(
                "another process dropped the fork's pin during the fork, and other writers have "
                "appended to the fork, which is now sealed: read their records, then drop the fork",
                log=self.name,
                start=manifest.next,
            )
        await destroy_log(target, clock=self.clock, writer=self.writer, grace_us=0)

    @property
    def _pins(self) -> Pins:
        return Pins(store=self.store, clock=self.clock, writer=self.writer)

    def _chain(self, source: Chain, pin: Pin | None, next_slot: int) -> Chain:
        """Return the epochs that hold the fork's records, and the fork's own empty first epoch."""
        shared = [
            replace(epoch, log=epoch.log or self.source)
            for epoch, until in zip(
                source.epochs, [*[e.first_slot for e in source.epochs[1:]], next_slot], strict=True
            )
            if pin is not None and until > self._first_slot(pin)
        ]
        genesis = Epoch(
            number=source.last.number + 1,
            id=self.clock.unique()[:16],
            first_slot=next_slot,
            opener=self.writer,
        )
        return Chain(epochs=(*shared, genesis), origin=Origin(log=self.source, pin=self.name))

    async def _with_streams(
        self, chain: Chain, source: Manifest, kept: Sequence[Pointer | Fragment]
    ) -> Chain:
        """Return the chain with the streams open at the fork's start and end.

        Raises:
            PositionCollected: the source was collected past the fork's start concurrently.
        """
        known = chain_of(source)
        at_start = known.streams_at_start
        if kept and kept[0].start != source.oldest:
            reader = SlotReader(store=self.store, clock=self.clock)
            at_start = await streams_at(reader, kept[0].start)
        return replace(chain, streams_at_start=at_start, streams=known.streams)

    @staticmethod
    def _first_slot(pin: Pin) -> int:
        # A snapshot does not state its slots, so all epochs are needed.
        return 0 if pin.snapshots else min((f.seq_no for f in pin.fragments), default=0)

    async def _carry(
        self,
        target: Within,
        children: Sequence[Pointer | Fragment],
        chain: Chain,
        pin: Pin,
    ) -> list[Pointer | Fragment]:
        """Write the fork's own snapshots of the pinned part; return its manifest's children."""
        inside = _inside(children, pin)
        work = [partial(self._carry_one, target, child, chain, pin) for child in inside]
        return await run_all(work, at_once=8)

    async def _with_newest(self, pin: Pin) -> list[Pointer | Fragment]:
        """Return a pin's children, with the newest fragment itself, for the next slot's sake."""
        children = _inside(pin.children, pin)
        while children and isinstance(last := children[-1], Pointer):
            # The source rolled the fragment up concurrently.
            snapshot = await TreeReader(store=self.store, clock=self.clock).snapshot(last)
            children = [*children[:-1], *_inside(snapshot.children, pin)]
        return children

    async def _carry_one(
        self, target: Within, child: Pointer | Fragment, chain: Chain, pin: Pin
    ) -> Pointer | Fragment:
        if isinstance(child, Fragment):
            return replace(child, path=path_of(child.seq_no, chain))
        snapshot = await TreeReader(store=self.store, clock=self.clock).snapshot(child)
        kept = await self._carry(target, snapshot.children, chain, pin)
        if isinstance(kept[0], Pointer) and len(kept) == 1:
            return kept[0]
        # The id distinguishes this snapshot from one of an aborted fork with the same name, which
        # may name other objects.
        made = snapshot_over(kept, writer=self.writer, names_depth=True, maker=chain.last.id)
        await store_named(target, object_of(made), clock=self.clock)
        return pointer_to(made)


def _inside(children: Sequence[Pointer | Fragment], pin: Pin) -> list[Pointer | Fragment]:
    return [child for child in children if overlaps(child, pin.start, pin.limit)]


def manifest_of_fork(
    source: Manifest, kept: Sequence[Pointer | Fragment], chain: Chain, *, writer: str
) -> Manifest:
    """Return the manifest of a fork: the source's sums, with all records not kept as collected."""
    first = kept[0].start if kept else source.next
    fragments = tuple(child for child in kept if isinstance(child, Fragment))
    return Manifest(
        setsum=source.setsum,
        collected=source.setsum - sum_of(kept),
        acc_bytes=source.acc_bytes,
        writer=writer,
        snapshots=tuple(child for child in kept if isinstance(child, Pointer)),
        fragments=fragments,
        initial_offset=first,
        initial_seq_no=None if fragments else source.next_seq_no,
        chain=chain,
    )


def refuse_unshareable(source: Manifest, start: int) -> None:
    """Refuse a source that cannot be forked from ``start`` on.

    Raises:
        UsageError: the source is in wal3's form, or has no such position yet.
        NoSuchLog: the source was dropped.
        PositionCollected: ``start`` was collected.
    """
    if source.chain is None:
        raise UsageError("a log of the manifest protocol cannot be forked: copy it instead")
    if source.chain.is_destroyed:
        raise NoSuchLog("the source log was dropped: fork another log")
    if 0 < start < source.oldest:
        raise collected(start, source.oldest)
    if start > source.next or start == source.next > source.oldest:
        raise UsageError(
            "the log has no such position yet: fork from a position before its end",
            start=start,
            next=source.next,
        )
