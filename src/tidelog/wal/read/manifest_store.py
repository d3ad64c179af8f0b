"""The manifest as a conditionally replaced state: one loop reads it, decides and writes.

A pure function decides the next manifest. This module reads the manifest, and replaces it on
condition of the version read. After a lost race it reads again and decides again, as
`tidelog.machine` does with other states.

Invariants: a manifest that contradicts itself is never written; the objects that a manifest names
are stored before it.
Source: wal3, "Write Path"; design page 3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ManifestMoved,
    ObjectChanged,
    OutcomeUnknown,
    TidelogError,
)
from tidelog.store import conditional
from tidelog.store.conditional import DEFAULT_RESEND, Resend
from tidelog.store.port import Store
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.manifest_update import check_manifest
from tidelog.wal.format.new_object import NewObject
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.read.named_objects import store_named

TRIES_MAX: Final = 100
WAIT_MOST_US: Final = 100_000


@dataclass(frozen=True, slots=True)
class Change:
    """The next manifest, and the objects to store before it, in order."""

    manifest: Manifest
    objects: tuple[NewObject, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestStore:
    """The manifest of the log at the root of ``store``."""

    store: Store
    clock: Clock
    resend: Resend = DEFAULT_RESEND

    async def create(self, manifest: Manifest) -> Head:
        """Create the log with its first manifest.

        Raises:
            ObjectExists: the log exists. NOT_APPLIED.
            OutcomeUnknown: this call may have created the log, and another process has replaced the
            manifest since.
            ContentionError: see `tidelog.store.conditional.create`.
            LocationError: see `tidelog.store.conditional.create`.
        """
        check_manifest(manifest)
        data = encode_manifest(manifest)
        e_tag = await conditional.create(
            self.store, MANIFEST, data, clock=self.clock, replaceable=True, resend=self.resend
        )
        return Head(manifest, e_tag)

    async def replace(self, head: Head, change: Change) -> Head:
        """Replace the manifest that the caller read, in one try.

        Raises:
            ManifestMoved: another process replaced it. NOT_APPLIED.
            OutcomeUnknown: another process replaced it, or replaced the manifest written here: read
            it and decide again.
            CorruptionError: the new manifest contradicts itself, or another object has the path of
            one that it names. NOT_APPLIED.
            ContentionError: see `tidelog.store.conditional.replace`.
            LocationError: see `tidelog.store.conditional.replace`.
        """
        check_manifest(change.manifest)
        for one in change.objects:
            await store_named(self.store, one, clock=self.clock, resend=self.resend)
        data = encode_manifest(change.manifest)
        try:
            e_tag = await conditional.replace(
                self.store, MANIFEST, data, e_tag=head.e_tag, clock=self.clock, resend=self.resend
            )
        except ObjectChanged as error:
            raise ManifestMoved("another process replaced the manifest: read it again") from error
        return Head(change.manifest, e_tag)

    async def update(
        self,
        decide: Callable[[Manifest], Change | None],
        *,
        head: Head | None = None,
        before_again: Callable[[Head], Awaitable[None]] | None = None,
    ) -> Head:
        """Replace the manifest by the result of ``decide``; return the stored manifest.

        ``decide`` is pure, and returns None if nothing is to be written. It may run several times,
        over newer manifests. It must recognize a manifest that has its change already, because an
        earlier try may have been stored and then replaced by another process. If the caller passes
        a ``head`` that it read before, neither None nor an error of ``decide`` over it counts: the
        manifest is read again first. ``before_again`` runs before each further try, and may raise.

        Raises:
            The errors of ``decide`` and ``before_again``.
            NoSuchLog: see `load_head`.
            CorruptionError: see `load_head`.
            ContentionError: other processes were first at every try. NOT_APPLIED.
            OutcomeUnknown: an earlier try may have been stored, and the manifest can no longer be
            read or written.
            LocationError: the store failed; ``outcome`` states whether the change may be stored.
        """
        update = _Update(self, decide, before_again)
        return await update.run(head)


class _Update:
    """One change, from the first read until it is stored, unneeded or impossible."""

    def __init__(
        self,
        manifests: ManifestStore,
        decide: Callable[[Manifest], Change | None],
        before_again: Callable[[Head], Awaitable[None]] | None,
    ) -> None:
        self._manifests = manifests
        self._decide = decide
        self._before_again = before_again
        self._doubt: OutcomeUnknown | None = None

    async def run(self, head: Head | None) -> Head:
        is_fresh = head is None
        head = head or await load_head(self._manifests.store)
        for attempt in range(TRIES_MAX):
            change = self._decided(head, is_fresh=is_fresh)
            if change is None and is_fresh:
                return head
            if change is not None and (after := await self._replaced(head, change)) is not None:
                return after
            head, is_fresh = await self._read_again(attempt if is_fresh else 0), True
        if self._doubt is not None:
            raise _still_unknown(self._doubt) from self._doubt
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries: other writers kept replacing the manifest; try again"
        )

    def _decided(self, head: Head, *, is_fresh: bool) -> Change | None:
        try:
            return self._decide(head.manifest)
        except TidelogError:
            if is_fresh:
                raise
            return None

    async def _replaced(self, head: Head, change: Change) -> Head | None:
        try:
            return await self._manifests.replace(head, change)
        except OutcomeUnknown as error:
            self._doubt = error
        except ContentionError:
            pass  # The race was lost, or the store was busy with other writes of the manifest.
        except LocationError as error:
            if self._doubt is None:
                raise
            raise _still_unknown(error) from error
        return None

    async def _read_again(self, attempt: int) -> Head:
        clock = self._manifests.clock
        if attempt:
            await clock.sleep(backoff_us(attempt - 1, clock, most_us=WAIT_MOST_US))
        try:
            head = await load_head(self._manifests.store)
            if self._before_again is not None:
                await self._before_again(head)
        except (LocationError, CorruptionError) as error:
            if self._doubt is None:
                raise
            raise _still_unknown(error) from error
        return head


def _still_unknown(reason: TidelogError) -> OutcomeUnknown:
    return OutcomeUnknown(
        "the manifest may have been replaced, and cannot be read back: read the log before a retry",
        reason=reason,
    )
