"""The manifest as a state that is replaced on condition: the one loop that reads, decides, writes.

What is decided is a pure function from a manifest to the next one. Here it is read, replaced on
condition of the version that was read, and after a lost race read again and decided anew, as
`tidelog.machine` does with other states.

Invariants: nothing is written that contradicts itself; what a manifest names is stored before it.
Source: wal3, "Write Path"; design page 3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tidelog.clock import Clock, backoff_us
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
    """What a manifest is to become, and what has to be stored before it, in that order."""

    manifest: Manifest
    objects: tuple[NewObject, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestStore:
    """The manifest of the log at the root of ``store``."""

    store: Store
    clock: Clock
    resend: Resend = DEFAULT_RESEND

    async def create(self, manifest: Manifest) -> Head:
        """Make the log, whose first manifest this is.

        Raises:
            ObjectExists: there is a log. NOT_APPLIED. OutcomeUnknown: this may have been its first
            manifest, and somebody has replaced that. ContentionError, LocationError: see
            `tidelog.store.conditional.create`.
        """
        check_manifest(manifest)
        data = encode_manifest(manifest)
        e_tag = await conditional.create(
            self.store, MANIFEST, data, clock=self.clock, replaceable=True, resend=self.resend
        )
        return Head(manifest, e_tag)

    async def replace(self, head: Head, change: Change) -> Head:
        """Replace a manifest as it was read, once.

        Raises:
            ManifestMoved: another replaced it. NOT_APPLIED. OutcomeUnknown: another replaced it, or
            what was written here: decide again, over what is there. CorruptionError: it contradicts
            itself, or something else lies where what it names was to be stored; it was not written.
            ContentionError, LocationError: see `tidelog.store.conditional.replace`.
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
            raise ManifestMoved("another replaced the manifest: read it again") from error
        return Head(change.manifest, e_tag)

    async def update(
        self,
        decide: Callable[[Manifest], Change | None],
        *,
        head: Head | None = None,
        before_again: Callable[[Head], Awaitable[None]] | None = None,
    ) -> Head:
        """Replace the manifest by what ``decide`` makes of it; return the one that then stands.

        ``decide`` is pure, may run several times, over newer and newer manifests, and has to see
        from one whether its change is in it already: one that was replaced by others may have been
        ours. None writes nothing. Over a ``head`` that was read before this call, neither None nor
        an error is believed. ``before_again`` may look around before each next try, and raise.

        Raises:
            whatever ``decide`` or ``before_again`` raises; NoSuchLog, CorruptionError: see
            `load_head`.
            ContentionError: others were first at every try. NOT_APPLIED. OutcomeUnknown: a manifest
            may have been ours, and nothing more can be read or written. LocationError: the store
            failed; ``outcome`` says whether the change may have landed.
        """
        update = _Update(self, decide, before_again)
        return await update.run(head)


class _Update:
    """One change, from the first look until it stands, or needs not, or cannot."""

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
        raise ContentionError("others replaced the manifest at every try: try again")

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
            pass  # Lost, or the store was busy with other writes of it.
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
        "the manifest may have been replaced as was asked for, and what became of it cannot be "
        "read: read the log before deciding again",
        reason=reason,
    )
