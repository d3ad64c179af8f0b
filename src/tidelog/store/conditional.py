"""Create and replace objects on condition, and know afterwards whether it happened.

The one place for the trap that a conditional put meets its own write: the put lands, its answer is
lost, it is sent again, and is refused because it landed. The remedy is to read back and compare.
Only two things are answers: that the put was done, and what stands under the key. Everything else
that a put or a look meets (no connection, a conflict of writes, a refusal in the middle, a body cut
short) leaves the outcome to be read back, and is tried again.

Invariants, which the caller promises: each body is unique (it carries a write id), so that equal
bodies are the same write, also where an e_tag is a hash of the body; none is the beginning of
another; and nobody deletes an object while its writer may still be in doubt.
Source: icechunk's note on conditional updates; wal3, "Interacting with Object Storage".
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.clock import Clock, backoff_us
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

    Units: attempts, the first included; microseconds between two, doubling; ``patience_us``: no
    attempt begins later than that after the first. The defaults outlast a server that restarts
    for 3 seconds, and give up on one that is gone in about 8. ``heard`` is told of each attempt
    that failed, for those who do not wait for the last.
    """

    attempts: int = 16
    first_us: int = 50_000
    most_us: int = 1_000_000
    patience_us: int = 7_000_000
    heard: Callable[[TidelogError], None] = field(default=lambda _: None, compare=False)

    def __post_init__(self) -> None:
        require(self.attempts >= 1, "a put is sent at least once", attempts=self.attempts)
        require(0 < self.first_us <= self.most_us, "waits begin above zero, and grow")


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

    An object that is there and is not ours proves that ours is not, and never will be, though an
    attempt may have been left in doubt: for had ours landed, it would still be there, since the
    key is neither replaced nor deleted, and an attempt still under way will be refused. Where
    others replace what is created (``replaceable``), that proof holds only while no attempt is in
    doubt; after that, theirs may stand on ours, and the answer is OutcomeUnknown.

    Raises:
        ObjectExists: somebody else created it. NOT_APPLIED.
        OutcomeUnknown: see above. UNKNOWN.
        ContentionError: the store was busy with other writes of the key each time. NOT_APPLIED.
        LocationError: attempts ran out; UNKNOWN if one of them may have landed.
    """
    write = _Write(store, key, data, e_tag=None, clock=clock, resend=resend)
    found = await write.run()
    if write.landed is None:
        raise write.lost(found, replaceable=replaceable)
    return write.landed


async def create_or_read(
    store: Store, key: str, data: bytes, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> bytes:
    """Create an object unless there is one; return the bytes that are there: ours, or another's.

    Raises:
        ContentionError, LocationError: as `create`.
    """
    write = _Write(store, key, data, e_tag=None, clock=clock, resend=resend)
    found = await write.run()
    return data if found is None else found.data


class Occupied(enum.Enum):
    """Who has a key that was to be taken."""

    CREATED = "the put was answered as done"
    OURS = "our body is there, of a try whose answer was lost"
    OTHERS = "somebody else's object is there, or nobody could read whose it is"


async def occupy(
    store: Store, key: str, data: bytes, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> Occupied:
    """Create an object unless there is one, and say who has the key now.

    What is there is read only where an answer was lost, and once: if that look fails, it is told as
    another's. For whoever looks at all that is there later, in order, as a fence's maker does.

    Raises:
        ContentionError, LocationError: as `create`.
    """
    write = _Write(store, key, data, e_tag=None, clock=clock, resend=resend, looks=False)
    await write.run()
    if write.landed is not None:
        return Occupied.CREATED
    return Occupied.OURS if await write.is_there() else Occupied.OTHERS


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

    A refusal with no earlier attempt in doubt proves that ours did not land, and (e_tags do not
    come back) never will. After an attempt in doubt, three things can be found. Ours: it landed.
    The old version: it has not landed, and is sent again, which can land only once, for whichever
    attempt lands first takes the e_tag away from the others. Somebody else's: either they replaced
    the old version, or they replaced ours; that cannot be told from here, only by who finds traces
    of ours in theirs: OutcomeUnknown.

    Raises:
        ObjectChanged: somebody else replaced or deleted that version. NOT_APPLIED.
        OutcomeUnknown: somebody else's is there, or nothing, and ours may have been before.
        ContentionError: the store was busy with other writes of the key each time. NOT_APPLIED.
        LocationError: attempts ran out; UNKNOWN if one of them may have landed.
    """
    write = _Write(store, key, data, e_tag=e_tag, clock=clock, resend=resend)
    found = await write.run()
    if write.landed is None:
        raise write.lost(found, replaceable=True)
    return write.landed


class _Found(enum.Enum):
    """What a look at the key shows."""

    BEFORE = "what the condition asks for: ours has not landed yet"
    OURS = "our body"
    OTHERS = "somebody else's body, or none where there was one"
    UNSEEN = "no answer: what is there is not known"


class _Write:
    """One conditional write, from the first attempt until it is known what became of it.

    ``landed`` is our e_tag, once it is known that our body stands there.
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
        self._old = e_tag  # None: there must be no object.
        self._clock = clock
        self._resend = resend
        self._looks = looks
        self._in_doubt = False  # An attempt may have landed, or may yet.
        self._is_unseen = False  # The condition did not hold, and nobody saw what is there.
        self._is_open = False  # A conflict was told, and nobody saw what had become of the put.
        self._last: TidelogError | None = None
        self._there: Object | None = None

    async def run(self) -> Object | None:
        """Send it until the key shows what became of it; return what is there if it is not ours.

        None may also mean that nothing is there; ``landed`` tells.

        Raises:
            ContentionError, LocationError: attempts ran out. Whatever a put was refused by for
            good, while none was in doubt.
        """
        begin_us = self._clock.monotonic_us()
        for attempt in range(self._resend.attempts):
            if attempt and not await self._may_try_again(attempt - 1, begin_us):
                break
            try:
                self.landed = await self._put()
                return None
            except TidelogError as error:
                self._note(error)
                if self._is_refused(error):
                    raise
            if await self._has_ended():
                return self._there
        raise self._given_up() from self._last

    async def _put(self) -> str:
        if self._old is None:
            return await self._store.put(self._key, self._data, if_absent=True)
        return await self._store.put(self._key, self._data, if_match=self._old)

    def _note(self, error: TidelogError) -> None:
        self._last = error
        self._resend.heard(error)
        self._in_doubt = self._in_doubt or error.outcome is not Outcome.NOT_APPLIED
        if isinstance(error, ObjectExists | ObjectChanged):
            self._is_unseen = True
        elif isinstance(error, ContentionError):
            # It is over, but a client below may have sent it before, and that may have landed.
            self._is_open = True

    @property
    def _may_have_landed(self) -> bool:
        return self._in_doubt or self._is_open

    @property
    def _may_be_there(self) -> bool:
        return self._may_have_landed or self._is_unseen

    def _is_refused(self, error: TidelogError) -> bool:
        """Say whether to send again cannot help, and nothing that was sent can have landed."""
        may_help = isinstance(error, ContentionError | LocationError)
        is_final = not may_help or isinstance(error, StoreRefused)
        return is_final and not self._may_be_there

    async def _has_ended(self) -> bool:
        """Look, after an attempt that was not answered as done, unless it never got there."""
        if not self._looks:
            return isinstance(self._last, ObjectExists)
        if not self._may_be_there:
            return False
        found = await self._look()
        if found is _Found.BEFORE:
            self._is_open = self._is_unseen = False
        return found in (_Found.OURS, _Found.OTHERS)

    async def is_there(self) -> bool:
        """Say whether our body is there after all; it is not looked for unless it may be."""
        return self._may_have_landed and await self._look() is _Found.OURS

    async def _look(self) -> _Found:
        try:
            found = await self._store.get(self._key)
        except ObjectNotFound:
            return _Found.BEFORE if self._old is None else _Found.OTHERS
        except TidelogError:
            # Not seen; to send again is safe, and shows more than to look again.
            return _Found.UNSEEN
        if found.data == self._data:
            self.landed = found.e_tag
            return _Found.OURS
        if found.e_tag == self._old:
            return _Found.BEFORE
        if self._data.startswith(found.data):
            return _Found.UNSEEN  # Our body, or what a bad connection left of it.
        self._there = found
        return _Found.OTHERS

    async def _may_try_again(self, attempt: int, begin_us: int) -> bool:
        """Wait before the next attempt; False if patience is at its end."""
        first_us, most_us = self._resend.first_us, self._resend.most_us
        wait_us = backoff_us(attempt, self._clock, first_us=first_us, most_us=most_us)
        await self._clock.sleep(wait_us)
        return self._clock.monotonic_us() - begin_us <= self._resend.patience_us

    def lost(self, found: Object | None, *, replaceable: bool) -> TidelogError:
        """Return the error of a write in whose place ``found`` is there, or nothing."""
        if self._may_have_landed and replaceable:
            return OutcomeUnknown(
                "an attempt was left in doubt, and somebody else's object is there now, "
                "perhaps in place of ours: look into it for traces of ours"
                if found is not None
                else "an attempt was left in doubt, and no object is there now: ours may have "
                "been, and was deleted",
                key=self._key,
            )
        if self._old is None:
            return ObjectExists("somebody else created the object", key=self._key)
        return ObjectChanged("somebody else replaced the object, or deleted it", key=self._key)

    def _given_up(self) -> TidelogError:
        if self._may_be_there or self._last is None:
            return LocationError(
                "the store does not answer, and whether the put landed is not known: "
                "read back before deciding again",
                outcome=Outcome.UNKNOWN,
                key=self._key,
                store=self._store.url,
                reason=self._last,
            )
        if isinstance(self._last, ObjectExists):
            return ObjectExists(
                "somebody else had created the object, and it was gone when it was looked for: "
                "read again, decide again",
                key=self._key,
            )
        kind = ContentionError if isinstance(self._last, ContentionError) else LocationError
        return kind(
            "the store did not take the object at any try: nothing was written",
            key=self._key,
            store=self._store.url,
            reason=self._last,
        )
