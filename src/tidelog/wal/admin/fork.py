"""Forking a slot log: another log that begins with the same records, and shares their objects.

The fork has the source's positions, sums and fragments; where these lie its epochs say. It writes
snapshots and a manifest of its own, and from then on the two have nothing to do with each other but
a pin in the source, by the fork's name, which holds what is shared. As the fork is collected, the
pin shrinks.

Invariants: the pin is sure before the fork's manifest is written, so a fork that is a log has all
that it names. What a fork shares with a log it never deletes.
Source: design page 3, "Manifest tree, setsum, cursors, collection".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from tidelog.clock import Clock, run_all
from tidelog.errors import (
    NameTaken,
    NoSuchLog,
    NoSuchPin,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    UsageError,
)
from tidelog.store.conditional import create
from tidelog.store.within import Within
from tidelog.wal.format.epoch import Chain, Epoch, Origin
from tidelog.wal.format.epoch_list import shorten
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest, path_of
from tidelog.wal.format.manifest_update import check_manifest, pointer_to, snapshot_over
from tidelog.wal.format.pin import Pin, pin_path
from tidelog.wal.format.snapshot import Pointer, encode_snapshot, overlaps, sum_of
from tidelog.wal.gc.pins import Pins
from tidelog.wal.read.epoch_history import with_all_epochs
from tidelog.wal.read.head import collected, load_head
from tidelog.wal.read.tree_reader import TreeReader
from tidelog.wal.slot_protocol.chain import chain_of
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.stream_history import streams_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A fork of the log ``source``, to be called ``name``. ``writer`` is a name for people."""

    store: Within
    source: str
    name: str
    clock: Clock
    writer: str

    async def make(self, *, start: int = 0) -> Manifest:
        """Fork from ``start`` on, or all that is left; return the fork's manifest.

        The fragment in which ``start`` lies is shared whole.

        Raises:
            UsageError: no pin could have the fork's name, the source has no such position, or is in
            wal3's form. NameTaken: there is such a log, or a fork of the name was begun and not
            finished: release its pin, collect, and fork again. NoSuchLog: there is no source, or
            it was destroyed.
            PositionCollected: ``start`` was collected. ContentionError: the source was being
            destroyed. LocationError: a store failed.
        """
        pin_path(self.name)
        target = self.store.sibling(self.name)
        with suppress(ObjectNotFound):
            await target.get(MANIFEST, limit=1)
            raise NameTaken(f"there is a log {self.name!r} already: choose another name")
        head = await roll_up_tail(self.store, clock=self.clock, writer=self.writer)
        refuse_unshareable(head.manifest, start)
        pins = Pins(store=self.store, clock=self.clock, writer=self.writer)
        pin = Pin(
            start=head.manifest.next, limit=head.manifest.next, swept=0, epoch_us=0, writer=""
        )
        if head.manifest.oldest < head.manifest.next:
            limit = head.manifest.next
            pin = (await pins.create(self.name, start=start, limit=limit, holder=self.name)).pin
        known = await with_all_epochs(self.store, chain_of(head.manifest))
        chain = self._chain(known.chain, pin, head.manifest.next_seq_no)
        children = await self._with_newest(pin)
        kept = await self._carry(target, children, chain, pin)
        chain = await self._with_streams(chain, head.manifest, kept)
        chain, lists = shorten(chain)
        for one in lists:
            # One that is there is of a fork that was begun: its name is the sum of its bytes.
            with suppress(ObjectExists):
                await create(target, one.path, one.data, clock=self.clock)
        manifest = manifest_of_fork(head.manifest, kept, chain, writer=self.writer)
        check_manifest(manifest)
        try:
            data = encode_manifest(manifest)
            await create(target, MANIFEST, data, clock=self.clock, replaceable=True)
        except ObjectExists as error:
            with suppress(NoSuchPin, ObjectChanged):
                await pins.release(self.name, force=True)
            raise NameTaken(f"another made a log {self.name!r} just now") from error
        return manifest

    def _chain(self, source: Chain, pin: Pin, next_slot: int) -> Chain:
        """Return the epochs in which the fork's records lie, and its own first one, of nobody's."""
        shared = [
            replace(epoch, log=epoch.log or self.source)
            for epoch, until in zip(
                source.epochs, [*[e.first_slot for e in source.epochs[1:]], next_slot], strict=True
            )
            if pin.is_held and until > self._first_slot(pin)
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
        """Return the chain with the streams open where the fork begins and where it goes on.

        Raises:
            PositionCollected: the source was collected meanwhile past where the fork begins.
        """
        known = chain_of(source)
        at_start = known.streams_at_start
        if kept and kept[0].start != source.oldest:
            reader = SlotReader(store=self.store, clock=self.clock)
            at_start = await streams_at(reader, kept[0].start)
        return replace(chain, streams_at_start=at_start, streams=known.streams)

    @staticmethod
    def _first_slot(pin: Pin) -> int:
        # A snapshot does not say its slots: then all epochs are named that there were.
        return 0 if pin.snapshots else min((f.seq_no for f in pin.fragments), default=0)

    async def _carry(
        self,
        target: Within,
        children: Sequence[Pointer | Fragment],
        chain: Chain,
        pin: Pin,
    ) -> list[Pointer | Fragment]:
        """Write snapshots for the fork that name what these name; return what names them."""
        inside = _inside(children, pin)
        work = [partial(self._carry_one, target, child, chain, pin) for child in inside]
        return await run_all(work, at_once=8)

    async def _with_newest(self, pin: Pin) -> list[Pointer | Fragment]:
        """Return what a pin names, the newest fragment by itself: it says where the log goes on."""
        children = _inside(pin.children, pin)
        while children and isinstance(last := children[-1], Pointer):
            # The source went on meanwhile, and rolled it up.
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
        made = snapshot_over(kept, writer=self.writer, names_depth=True)
        # One that is there is of a fork that was begun: its name says what it names.
        with suppress(ObjectExists):
            await create(target, made.path, encode_snapshot(made), clock=self.clock)
        return pointer_to(made)


def _inside(children: Sequence[Pointer | Fragment], pin: Pin) -> list[Pointer | Fragment]:
    return [child for child in children if overlaps(child, pin.start, pin.limit)]


def manifest_of_fork(
    source: Manifest, kept: Sequence[Pointer | Fragment], chain: Chain, *, writer: str
) -> Manifest:
    """Return the manifest of a fork: the source's sums, of which the rest counts as collected."""
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
    """Refuse a source that cannot be forked, or not from there.

    Raises:
        UsageError, NoSuchLog, PositionCollected: so it is.
    """
    if source.chain is None:
        raise UsageError("a log in wal3's form cannot be forked: copy it")
    if source.chain.is_destroyed:
        raise NoSuchLog("the log to fork was destroyed")
    if 0 < start < source.oldest:
        raise collected(start, source.oldest)
    if start > source.next or start == source.next > source.oldest:
        raise UsageError("the log has no such position yet", start=start, next=source.next)


async def let_go_of_origin(store: Within, *, clock: Clock, writer: str) -> None:
    """Have a fork's pin in its source hold no more than the fork, and forks of it, still need."""
    manifest = (await load_head(store)).manifest
    if manifest.chain is None or (origin := manifest.chain.origin) is None:
        return
    held = await Pins(store=store, clock=clock, writer=writer).list()
    start = min([manifest.oldest, *(pin.start for pin in held.values())])
    source = Pins(store=store.sibling(origin.log), clock=clock, writer=writer)
    await source.shrink(origin.pin, start)
