"""Committing to a wal3 log: a fragment is stored, then a manifest that names it.

What became of a fragment is read back, never guessed. Its number is created once, and a manifest
that has moved past a number names the fragment that was created there, whoever wrote that manifest;
so a fragment whose manifest was refused is looked for before anybody says that it is lost.

Invariants: number N+1 is created only once N is stored and N-1 is named, so two at the most lie
beyond the manifest, and they follow each other; a manifest is replaced only by one that continues
it (see `transitions`).
Source: wal3, "Write Path" and "Recovery"; docs/internals/wal3.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.clock import Clock, wall_us
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    NameInUse,
    NoSuchLog,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    TidelogError,
)
from tidelog.store.conditional import DEFAULT_RESEND, Resend, create
from tidelog.store.port import Store
from tidelog.wal.append.telling import not_encoded
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.json import U64_MAX
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.manifest_update import Rollover, add_fragment, roll_over
from tidelog.wal.format.record_items import log_full
from tidelog.wal.format.snapshot import object_of
from tidelog.wal.format.wal3_records import (
    encode_fragment,
    place_records,
)
from tidelog.wal.manifest_protocol.stored_fragment import (
    check_count,
    describe_orphan,
    fragment_over,
)
from tidelog.wal.read.head import Head, load_head, load_past, refuse_slots
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.read.read_again import read_again
from tidelog.wal.read.tree_reader import TreeReader

TRIES_MAX: Final = 100
BYTES_MAX: Final = 2**63 - 1  # So far below what a manifest can say that no append comes by it.


@dataclass(slots=True, kw_only=True)
class Committer:
    """Commits one batch after another. ``writer`` is a name for people, in what it writes.

    ``resend`` is how long a fragment is sent again.
    """

    store: Store
    clock: Clock
    writer: str
    rollover: Rollover = field(default_factory=Rollover)
    resend: Resend = DEFAULT_RESEND
    _head: Head | None = None
    _has_looked: bool = False

    @property
    def is_open(self) -> bool:
        """Say whether it is known where the log goes on."""
        return self._head is not None

    async def open(self, *, make: bool = False) -> Manifest:
        """Read the log's head, and bring in what a writer left between a fragment and a manifest.

        ``make`` makes the log where there is none.

        Raises:
            NoSuchLog: there is none. UsageError: it is a log of the other protocol.
            CorruptionError: what is there is no log, or does not fit together. LocationError: the
            store failed.
        """
        if make:
            await self.make()
        head = await load_head(self.store)
        refuse_slots(head.manifest)
        if not self._has_looked:
            head = await self._looked_at(head)
        lost = 0
        while lost < TRIES_MAX:  # Of orphans there may be as many as another's writers left.
            orphan = await self._orphan_after(head.manifest)
            if orphan is None:
                self._head = head
                return head.manifest
            head = await self._named(orphan, head)
            lost += not _names_last(head.manifest, orphan)
        raise ContentionError("other writers were ahead at every try to open the log")

    async def make(self) -> bool:
        """Make the log, unless there is one; say whether it was made, as far as that is known."""
        try:
            await self._manifests.create(Manifest(writer="init"))
        except ObjectExists:
            return False
        except OutcomeUnknown:
            return True  # It was made, perhaps by us, and somebody wrote to it since.
        return True

    async def store_next(self, bodies: pa.BinaryArray) -> Fragment | None:
        """Store records as the log's next fragment; None if another writer has its number.

        They are in the log once it is published.

        Raises:
            UsageError: the log is full, and nothing was stored.
            LocationError: the store failed; UNKNOWN if they may have been stored, and so be brought
            in by whoever opens the log next. Otherwise see `open`.
        """
        manifest = self._head.manifest if self._head else await self.open()
        if manifest.acc_bytes > BYTES_MAX:
            raise log_full("byte", manifest.acc_bytes)
        fragment = await self._store(bodies, manifest.next_seq_no, manifest.next)
        if fragment is None:
            self._head = None  # What the other wrote is to be brought in.
        return fragment

    async def store_after(self, bodies: pa.BinaryArray, before: Fragment) -> Fragment | None:
        """Store records after a fragment that is being published; None if the number is taken.

        That one is stored, so it will be in the log, whoever brings it in, and so will this.

        Raises:
            LocationError: see `store_next`.
        """
        return await self._store(bodies, before.seq_no + 1, before.limit)

    async def publish(self, fragment: Fragment) -> bool:
        """Bring a stored fragment into the log; False if it never will be there.

        Raises:
            OutcomeUnknown: whether it is in the log shows once the log can be read.
        """
        head, self._head = self._head, None
        try:
            head = await self._named(fragment, head)
            if _names_last(head.manifest, fragment):
                self._head = head
                return True
            return await self._is_named(fragment)
        except OutcomeUnknown:
            raise
        except NoSuchLog as error:
            raise OutcomeUnknown(
                "the log was destroyed while records were appended to it: nobody can tell whether "
                "they were in it for a moment, and they are gone",
                path=fragment.path,
            ) from error
        except TidelogError as error:
            # Whatever it was, the fragment is stored: nobody may be told that it is not there.
            raise OutcomeUnknown(
                "the records were stored, and it is not known whether the log names them: the next "
                "to open the log brings them in",
                path=fragment.path,
                reason=error,
            ) from error

    @property
    def _manifests(self) -> ManifestStore:
        return ManifestStore(store=self.store, clock=self.clock)

    async def _store(self, bodies: pa.BinaryArray, seq_no: int, start: int) -> Fragment | None:
        if seq_no >= U64_MAX:  # The manifest names the number after it, once all is collected.
            raise log_full("fragment", seq_no)
        try:
            fragment, data = await self.clock.offload(partial(self._encode, bodies, seq_no, start))
        except (pa.ArrowException, OverflowError, MemoryError) as error:
            raise not_encoded(error) from error
        try:
            await create(self.store, fragment.path, data, clock=self.clock, resend=self.resend)
        except ObjectExists:
            return None
        return fragment

    async def _named(self, fragment: Fragment, head: Head | None) -> Head:
        """Have the manifest name a fragment, unless its number is past.

        The name of a snapshot is its sum, and not its depth. One who rolls up by other measures may
        have stored the same fragments two levels deep, and lost his race: one child more has a name
        of its own.
        """
        try:
            return await self._manifests.update(
                partial(self._naming, fragment, self.rollover), head=head
            )
        except NameInUse:
            more = Rollover(
                fragments=self.rollover.fragments + 1, snapshots=self.rollover.snapshots + 1
            )
            return await self._manifests.update(partial(self._naming, fragment, more))

    def _naming(self, fragment: Fragment, rollover: Rollover, manifest: Manifest) -> Change | None:
        """Return the manifest that names a fragment too; None if its number is past. Pure.

        Raises:
            NoSuchLog: the log was destroyed.
        """
        refuse_slots(manifest)
        if manifest.next_seq_no > fragment.seq_no:
            return None
        added = add_fragment(manifest, fragment, writer=self.writer)
        rolled, snapshot = roll_over(added, rollover, writer=self.writer)
        if snapshot is None:
            return Change(rolled)
        return Change(rolled, (object_of(snapshot),))

    async def _is_named(self, fragment: Fragment) -> bool:
        """Say whether the log has a fragment whose number is past."""
        reader = TreeReader(store=self.store, clock=self.clock)
        for _ in range(TRIES_MAX):
            manifest = await reader.manifest()
            if fragment.start < manifest.oldest:
                raise OutcomeUnknown(
                    "the log was collected past the records before it could be seen whether it "
                    "had named them",
                    path=fragment.path,
                )
            try:
                found = await reader.fragments_of(
                    manifest, start=fragment.start, limit=fragment.start + 1
                )
            except ObjectNotFound:
                continue  # A collection is under way: the next manifest knows.
            return fragment in found
        raise LocationError("the log's snapshots vanish as fast as they are read")

    async def _looked_at(self, head: Head) -> Head:
        """Hold the newest fragment against its object: nothing else says where the log goes on.

        Once, by the first to open: what others have added since they were told themselves. An
        object that cannot be read is left to readers, and to scrub.

        Raises:
            CorruptionError: the manifest says that the log goes on elsewhere.
        """
        manifest = head.manifest
        while manifest.fragments:
            newest = manifest.fragments[-1]
            try:
                data = (await self.store.get(newest.path)).data
            except ObjectNotFound as error:
                await load_past(self.store, manifest, error)
                head = await load_head(self.store)
                manifest = head.manifest
                continue
            check_count(newest, data)
            break
        self._has_looked = True
        return head

    async def _orphan_after(self, manifest: Manifest) -> Fragment | None:
        """Return the fragment that was stored under the next number, if there is one."""
        path = fragment_path(manifest.next_seq_no)

        async def once() -> Fragment:
            data = (await self.store.get(path)).data
            return await self.clock.offload(partial(describe_orphan, data, manifest.next_seq_no))

        try:
            fragment = await read_again(once)
        except ObjectNotFound:
            return None
        if fragment.start != manifest.next:
            raise CorruptionError(
                f"a fragment that no manifest names starts at {fragment.start}, where the log "
                f"goes on at {manifest.next}: move it away",
                path=path,
            )
        return fragment

    def _encode(self, bodies: pa.BinaryArray, seq_no: int, start: int) -> tuple[Fragment, bytes]:
        records = place_records(bodies, start=start, timestamp_us=wall_us(self.clock))
        # Two writers may bring the same bodies at the same microsecond; their bytes must differ.
        data = encode_fragment(records, write_id=self.clock.unique())
        return fragment_over(records, seq_no, len(data)), data


def _names_last(manifest: Manifest, fragment: Fragment) -> bool:
    return bool(manifest.fragments) and manifest.fragments[-1] == fragment
