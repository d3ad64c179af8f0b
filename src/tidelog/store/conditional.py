"""Conditional creation and replacement of objects, with a known outcome.

This module handles the case that a conditional put meets its own result. The put is stored, its
answer is lost, it is sent again, and the store refuses it because the first try succeeded. The
remedy is to read back and compare. Only two results decide: the put was answered as done, or a read
shows the object under the key. Every other result leaves the outcome open: no connection, a
conflict of writes, a refusal during the retries, or a body cut short. Then the put is tried again.

Invariants, which the caller guarantees: each body is unique (it carries a write id), so equal
bodies are the same write, even if an e_tag is a hash of the body. No body is a prefix of another
one. No process deletes an object while its writer may still be in doubt.
Source: icechunk's note on conditional updates; wal3, "Interacting with Object Storage".
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import (
    ContentionError,
    LocationError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    OutcomeUnknown,
    StoreRefused,
    TidelogError,
    require,
)
from tidelog.store.port import Object, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """How long a put is sent again.

    Units:
        attempts: tries, including the first.
        first_us, most_us: wait between two tries, which doubles up to the maximum.
        patience_us: time after the first try in which another one may begin.

    The defaults outlast a restart of a server for 3 seconds, and give up after about 8 seconds.
    ``heard`` is called with the error of each failed try.
    """

    attempts: int = 16
    first_us: int = 50_000
    most_us: int = 1_000_000
    patience_us: int = 7_000_000
    heard: Callable[[TidelogError], None] = field(default=lambda _: None, compare=False)

    def __post_init__(self) -> None:
        require(self.attempts >= 1, "attempts must be at least 1", attempts=self.attempts)
        require(0 < self.first_us <= self.most_us, "first_us must be above 0 and at most most_us")


DEFAULT_RESEND = Resend()


async def create(
    store: Store,
    key: str,
    data: bytes,
    *,
    clock: Clock,
    replaceable: bool = False,
    resend: Resend = DEFAULT_RESEND,
) -> str:
    """Create an object, and return its e_tag; exactly one of all creators of a key succeeds.

    If another body is there, this one is not and never will be, even if the outcome of a try is
    unknown. Had that try been stored, it would still be there, because the key is neither replaced
    nor deleted; and a try still in flight will be refused. If other processes replace created
    objects (``replaceable``), this proof fails once the outcome of a try is unknown: the other body
    may have replaced this one. Then the error is OutcomeUnknown.

    Raises:
        ObjectExists: another process created it. NOT_APPLIED.
        OutcomeUnknown: see above. UNKNOWN.
        ContentionError: the store was busy with other writes of the key at each try. NOT_APPLIED.
        LocationError: all tries failed; UNKNOWN if one of them may be stored.
    """
    write = _Write(store, key, data, e_tag=None, clock=clock, resend=resend)
    existing = await write.run()
    if write.landed is None:
        raise write.lost(existing, replaceable=replaceable)
    return write.landed


async def create_or_read(
    store: Store, key: str, data: bytes, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> bytes:
    """Create an object if it does not exist; return the stored bytes, maybe another process's.

    Raises:
        ContentionError: see `create`.
        LocationError: see `create`.
    """
    write = _Write(store, key, data, e_tag=None, clock=clock, resend=resend)
    existing = await write.run()
    return data if existing is None else existing.data


class KeyOwner(enum.Enum):
    """The owner of a key after an attempt to create it."""

    CREATED = "the store acknowledged the put"
    OURS = "the object has this writer's body, from a try whose answer was lost"
    OTHERS = "the object is another process's, or could not be read"


async def occupy(
    store: Store, key: str, data: bytes, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> KeyOwner:
    """Create an object if it does not exist, and return the owner of the key.

    The object is read only if an answer was lost, and only once; if that read fails, the object
    counts as another process's. This suits callers that read all objects in order later, as an
    opener does after its fences.

    Raises:
        ContentionError: see `create`.
        LocationError: see `create`.
    """
    write = _Write(store, key, data, e_tag=None, clock=clock, resend=resend, looks=False)
    await write.run()
    if write.landed is not None:
        return KeyOwner.CREATED
    return KeyOwner.OURS if await write.is_there() else KeyOwner.OTHERS


async def replace(
    store: Store,
    key: str,
    data: bytes,
    *,
    e_tag: str,
    clock: Clock,
    resend: Resend = DEFAULT_RESEND,
) -> str:
    """Replace the version ``e_tag`` of an object, and return the e_tag of the new one.

    If the store refuses the put and no earlier try is in doubt, the body was not stored. It never
    will be, because e_tags do not recur. After a try in doubt, a read can find three cases:

    - This body: it was stored.
    - The old version: it was not stored, so it is sent again. It can be stored only once, because
      the first try to succeed changes the e_tag.
    - Another body: it replaced the old version or this body. Only traces of this body in the other
      one could show which, so the error is OutcomeUnknown.

    Raises:
        ObjectChanged: another process replaced or deleted that version. NOT_APPLIED.
        OutcomeUnknown: another body or no object is there, and this body may have been there
        before.
        ContentionError: the store was busy with other writes of the key at each try. NOT_APPLIED.
        LocationError: all tries failed; UNKNOWN if one of them may be stored.
    """
    write = _Write(store, key, data, e_tag=e_tag, clock=clock, resend=resend)
    existing = await write.run()
    if write.landed is None:
        raise write.lost(existing, replaceable=True)
    return write.landed


class _Found(enum.Enum):
    """The result of a read of the key."""

    BEFORE = "the version that the condition requires: the put is not stored yet"
    OURS = "this writer's body"
    OTHERS = "another process's body, or no object in place of one"
    UNSEEN = "the store did not answer, so the object is unknown"


class _Write:
    """One conditional write, from the first try until its outcome is known.

    ``landed`` is the e_tag of the stored body, once that is known.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        data: bytes,
        *,
        e_tag: str | None,
        clock: Clock,
        resend: Resend,
        looks: bool = True,
    ) -> None:
        self.landed: str | None = None
        self._store = store
        self._key = key
        self._data = data
        self._old = e_tag  # None: the object must not exist.
        self._clock = clock
        self._resend = resend
        self._looks = looks
        self._in_doubt = False  # A try was or may still be stored.
        self._is_unseen = False  # The condition failed, and the object was not read yet.
        self._is_open = False  # A conflict was reported, and the object was not read since.
        self._last: TidelogError | None = None
        self._there: Object | None = None

    async def run(self) -> Object | None:
        """Send the put until its outcome is known; return the object found instead, if any.

        None may also mean that no object is there; ``landed`` distinguishes the cases.

        Raises:
            ContentionError: all tries failed.
            LocationError: all tries failed.
            The final refusal of a put while no try was in doubt.
        """
        begin_us = self._clock.monotonic_us()
        for attempt in range(self._resend.attempts):
            if attempt and not await self._may_try_again(attempt - 1, begin_us):
                break
            try:
                self.landed = await self._store.put(
                    self._key, self._data, if_absent=self._old is None, if_match=self._old
                )
                return None
            except TidelogError as error:
                self._note(error)
                if self._is_refused(error):
                    raise
            if await self._has_ended():
                return self._there
        raise self._unresolved_error() from self._last

    def _note(self, error: TidelogError) -> None:
        self._last = error
        self._resend.heard(error)
        self._in_doubt = self._in_doubt or error.outcome is not Outcome.NOT_APPLIED
        if isinstance(error, ObjectExists | ObjectChanged):
            self._is_unseen = True
        elif isinstance(error, ContentionError):
            # The request is over, but a client library may have sent it before, and that try may be
            # stored.
            self._is_open = True

    @property
    def _may_have_landed(self) -> bool:
        return self._in_doubt or self._is_open

    @property
    def _may_be_there(self) -> bool:
        return self._may_have_landed or self._is_unseen

    def _is_refused(self, error: TidelogError) -> bool:
        """Return True if sending again cannot help, and no earlier try can be stored."""
        may_help = isinstance(error, ContentionError | LocationError)
        is_final = not may_help or isinstance(error, StoreRefused)
        return is_final and not self._may_be_there

    async def _has_ended(self) -> bool:
        """Read the object after an unsuccessful try, unless the put cannot have been stored."""
        if not self._looks:
            return isinstance(self._last, ObjectExists)
        if not self._may_be_there:
            return False
        result = await self._look()
        if result is _Found.BEFORE:
            self._is_open = self._is_unseen = False
        return result in (_Found.OURS, _Found.OTHERS)

    async def is_there(self) -> bool:
        """Return True if this body is stored; read the object only if it may be."""
        return self._may_have_landed and await self._look() is _Found.OURS

    async def _look(self) -> _Found:
        try:
            stored = await self._store.get(self._key)
        except ObjectNotFound:
            return _Found.BEFORE if self._old is None else _Found.OTHERS
        except TidelogError:
            # Sending again is safe, and shows more than another read.
            return _Found.UNSEEN
        if stored.data == self._data:
            self.landed = stored.e_tag
            return _Found.OURS
        if stored.e_tag == self._old:
            return _Found.BEFORE
        if self._data.startswith(stored.data):
            return _Found.UNSEEN  # This body, cut short on the way.
        self._there = stored
        return _Found.OTHERS

    async def _may_try_again(self, attempt: int, begin_us: int) -> bool:
        """Wait before the next try; return False if the patience is used up."""
        first_us, most_us = self._resend.first_us, self._resend.most_us
        wait_us = backoff_us(attempt, self._clock, first_us=first_us, most_us=most_us)
        await self._clock.sleep(wait_us)
        return self._clock.monotonic_us() - begin_us <= self._resend.patience_us

    def lost(self, found: Object | None, *, replaceable: bool) -> TidelogError:
        """Return the error of a write that was not stored, given the object found instead."""
        if self._may_have_landed and replaceable:
            return OutcomeUnknown(
                "the store did not answer a put, and another process's object has the key now: "
                "read that object to find out whether the put was stored first"
                if found is not None
                else "the store did not answer a put, and no object has the key now: "
                "the object may have been stored, then deleted",
                key=self._key,
            )
        if self._old is None:
            return ObjectExists("another process created the object", key=self._key)
        return ObjectChanged("another process replaced or deleted the object", key=self._key)

    def _unresolved_error(self) -> TidelogError:
        if self._may_be_there or self._last is None:
            return LocationError(
                "the store does not answer, so the put may be stored: read the object back "
                "before a retry",
                outcome=Outcome.UNKNOWN,
                key=self._key,
                store=self._store.url,
                reason=self._last,
            )
        if isinstance(self._last, ObjectExists):
            return ObjectExists(
                "another process created the object, and it was deleted before it could be read: "
                "read again, and decide again",
                key=self._key,
            )
        kind = ContentionError if isinstance(self._last, ContentionError) else LocationError
        return kind(
            "the store refused the put at every try: nothing was written",
            key=self._key,
            store=self._store.url,
            reason=self._last,
        )
