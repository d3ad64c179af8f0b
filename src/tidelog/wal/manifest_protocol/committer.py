"""Commits to a wal3 log: store a fragment, then a manifest that names it.

The committer reads the outcome of a fragment back and never guesses it. A fragment's number is
created only once. A manifest that is past a number names the fragment created under it, whichever
process wrote the manifest. So after a refused manifest the committer looks for its fragment before
it reports a loss.

Invariants: number N+1 is created only after N is stored and N-1 is named, so at most two fragments
are beyond the manifest, and they are contiguous. A manifest is replaced only by one that continues
it (see `tidelog.wal.format.manifest_update`).
Source: wal3, "Write Path" and "Recovery"; docs/internals/wal3.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.core.clock import Clock, wall_us
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
from tidelog.wal.append.append_errors import not_encoded
from tidelog.wal.format.arrays import log_full
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.json import U64_MAX
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.manifest_update import Rollover, add_fragment, roll_over
from tidelog.wal.format.snapshot import object_of
from tidelog.wal.format.wal3_records import (
    check_count,
    describe_orphan,
    encode_fragment,
    fragment_over,
    place_records,
)
from tidelog.wal.read.head import Head, TreeReader, load_head, load_past, read_again, refuse_slots
from tidelog.wal.read.manifest_store import Change, ManifestStore

TRIES_MAX: Final = 100
# Far below the limit of the manifest's field, so an append cannot exceed that.
BYTES_MAX: Final = 2**63 - 1


@dataclass(slots=True, kw_only=True)
class Committer:
    """The commits of one writer's batches. ``writer`` is a name for people; manifests carry it.

    ``resend`` limits how long a fragment is sent again.
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
        """Return True if the end of the log is known."""
        return self._head is not None

    async def open(self, *, make: bool = False) -> Manifest:
        """Read the manifest, and add the fragments that a crashed writer stored but did not name.

        ``make`` creates the log if it does not exist.

        Raises:
            NoSuchLog: the log does not exist.
            UsageError: the log uses slot commits.
            CorruptionError: the objects are not a log, or contradict each other.
            LocationError: the store failed.
        """
        if make:
            await self.make()
        head = await load_head(self.store)
        refuse_slots(head.manifest)
        if not self._has_looked:
            head = await self._looked_at(head)
        lost = 0
        while lost < TRIES_MAX:  # Adopted orphans do not count: other writers may have left many.
            orphan = await self._orphan_after(head.manifest)
            if orphan is None:
                self._head = head
                return head.manifest
            head = await self._named(orphan, head)
            lost += not _names_last(head.manifest, orphan)
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries to open the log: other writers kept appending "
            "first; try again"
        )

    async def make(self) -> bool:
        """Create the log if it does not exist; return True if it was or may have been created."""
        try:
            await self._manifests.create(Manifest(writer="init"))
        except ObjectExists:
            return False
        except OutcomeUnknown:
            # The log was created, perhaps by this call, and another process wrote to it since.
            return True
        return True

    async def store_next(self, bodies: pa.BinaryArray) -> Fragment | None:
        """Store records as the log's next fragment; return None if another writer took its number.

        The records are in the log once the fragment is published.

        Raises:
            UsageError: the log is full. NOT_APPLIED.
            LocationError: the store failed. If UNKNOWN, the next opener may add the fragment to the
            log.
            Otherwise see `open`.
        """
        manifest = self._head.manifest if self._head else await self.open()
        if manifest.acc_bytes > BYTES_MAX:
            raise log_full("byte", manifest.acc_bytes)
        fragment = await self._store(bodies, manifest.next_seq_no, manifest.next)
        if fragment is None:
            self._head = None  # Read the log again, to add the other writer's fragment.
        return fragment

    async def store_after(self, bodies: pa.BinaryArray, before: Fragment) -> Fragment | None:
        """Store records after a fragment being published; return None if the number is taken.

        The fragment before is stored, so some writer will add it to the log, and then this one.

        Raises:
            LocationError: see `store_next`.
        """
        return await self._store(bodies, before.seq_no + 1, before.limit)

    async def publish(self, fragment: Fragment) -> bool:
        """Add a stored fragment to the log; return False if it can never be in the log.

        Raises:
            OutcomeUnknown: the log must be read to find out whether the fragment is in it.
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
                "another process dropped the log during the append: the records are lost, "
                "whether they were appended or not",
                path=fragment.path,
            ) from error
        except TidelogError as error:
            # After any error the fragment is stored and may still be added, so NOT_APPLIED would be
            # wrong.
            raise OutcomeUnknown(
                "the records are stored, but the manifest may not name them yet: do not append "
                "them again; open the log again, which adds them",
                path=fragment.path,
                reason=error,
            ) from error

    @property
    def _manifests(self) -> ManifestStore:
        return ManifestStore(store=self.store, clock=self.clock)

    async def _store(self, bodies: pa.BinaryArray, seq_no: int, start: int) -> Fragment | None:
        # Once all records are collected, the manifest names the number after this one.
        if seq_no >= U64_MAX:
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
        """Add a fragment to the manifest, unless the manifest is past its number.

        A snapshot's name contains its setsum but not its depth. Another writer with other
        thresholds may have stored a snapshot of the same fragments two levels deep, and then lost
        its race. A snapshot with one more child has a different name, so the second try uses higher
        thresholds.
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
        """Return the manifest with a fragment added, or None if its number is past. Pure.

        Raises:
            NoSuchLog: the log was dropped.
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
        """Return True if the log has a fragment whose number is past."""
        reader = TreeReader(store=self.store, clock=self.clock)
        for _ in range(TRIES_MAX):
            manifest = await reader.manifest()
            if fragment.start < manifest.oldest:
                raise OutcomeUnknown(
                    "a collector deleted that part of the log before this writer could check "
                    "whether these records were in it: append them again only if a repeat does no "
                    "harm",
                    path=fragment.path,
                )
            try:
                found = await reader.fragments_of(
                    manifest, start=fragment.start, limit=fragment.start + 1
                )
            except ObjectNotFound:
                continue  # A collection is running: the next manifest shows the result.
            return fragment in found
        raise LocationError(
            f"gave up after {TRIES_MAX} tries to read the log's snapshots: collectors kept "
            "deleting them; read the log again"
        )

    async def _looked_at(self, head: Head) -> Head:
        """Check the newest fragment of the manifest against its object, on the first open only.

        Nothing else would show that a changed manifest gives a wrong next position. Fragments that
        other writers add later are not checked. If the object cannot be read, readers and scrub
        report it.

        Raises:
            CorruptionError: the manifest gives a wrong next position.
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
        """Return the stored fragment with the next number, if it exists."""
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
                f"a fragment that the manifest does not name starts at {fragment.start}, but the "
                f"log's next position is {manifest.next}: move that fragment out of the log's "
                "folder",
                path=path,
            )
        return fragment

    def _encode(self, bodies: pa.BinaryArray, seq_no: int, start: int) -> tuple[Fragment, bytes]:
        records = place_records(bodies, start=start, timestamp_us=wall_us(self.clock))
        # Two writers may append the same bodies in the same microsecond, and their bytes must
        # differ.
        data = encode_fragment(records, write_id=self.clock.unique())
        return fragment_over(records, seq_no, len(data)), data


def _names_last(manifest: Manifest, fragment: Fragment) -> bool:
    return bool(manifest.fragments) and manifest.fragments[-1] == fragment
