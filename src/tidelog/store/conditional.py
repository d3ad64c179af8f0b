"""Create and replace objects on condition, and know afterwards whether it happened.

The one place for the trap that a conditional put meets its own write: the put lands, its answer is
lost, it is sent again, and is refused because it landed. The remedy is to read back and compare.

Invariants, which the caller promises: each body is unique (it carries a write id), so that equal
bodies are the same write, also where an e_tag is a hash of the body; and nobody deletes an object
while its writer may still be in doubt.
Source: icechunk's note on conditional updates; wal3, "Interacting with Object Storage".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidelog.clock import Clock, backoff_us
from tidelog.errors import (
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
from tidelog.store.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """How long a put is sent again.

    Units: attempts, the first included; microseconds between two, doubling; ``patience_us``: no
    attempt begins later than that after the first. The defaults outlast a server that restarts
    for 3 seconds, and give up on one that is gone in about 8.
    """

    attempts: int = 16
    first_us: int = 50_000
    most_us: int = 1_000_000
    patience_us: int = 7_000_000

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
        LocationError: attempts ran out; UNKNOWN if one of them may have landed.
    """
    write = _Write(store, key, data, e_tag=None, clock=clock)
    return await write.run(resend, replaceable=replaceable)


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
        LocationError: attempts ran out; UNKNOWN if one of them may have landed.
    """
    write = _Write(store, key, data, e_tag=e_tag, clock=clock)
    return await write.run(resend, replaceable=True)


async def occupy(
    store: Store, key: str, data: bytes, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> bool:
    """Create an object unless there is one, and say whether the put was answered as done.

    Nothing is read back: if not, somebody's object is there, be it ours or another's. For whoever
    looks at all that is there later, in order.

    Raises:
        LocationError: the store did not answer in all that time; UNKNOWN if the put may have landed
        or may yet land.
    """
    begin_us, in_doubt = clock.monotonic_us(), False
    last: TidelogError | None = None
    for attempt in range(resend.attempts):
        if attempt:
            first_us, most_us = resend.first_us, resend.most_us
            await clock.sleep(backoff_us(attempt - 1, clock, first_us=first_us, most_us=most_us))
            if clock.monotonic_us() - begin_us > resend.patience_us:
                break
        try:
            await store.put(key, data, if_absent=True)
        except ObjectExists:
            return False
        except TidelogError as error:
            last = error
            in_doubt = in_doubt or error.outcome is not Outcome.NOT_APPLIED
            if isinstance(error, StoreRefused):
                break
        else:
            return True
    raise LocationError(
        "the store does not answer, and whether the put landed is not known"
        if in_doubt
        else "the store did not take an object",
        outcome=Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED,
        path=key,
        store=store.url,
        reason=last,
    ) from last


class _Found(enum.Enum):
    """What a look at the key shows."""

    BEFORE = "what the condition asks for: ours has not landed yet"
    OURS = "our body"
    OTHERS = "somebody else's body, or none where there was one"


class _Write:
    """One conditional write, from the first attempt until it is known what became of it."""

    def __init__(
        self, store: Store, key: str, data: bytes, *, e_tag: str | None, clock: Clock
    ) -> None:
        self._store = store
        self._key = key
        self._data = data
        self._old = e_tag  # None: there must be no object.
        self._clock = clock
        self._in_doubt = False
        self._landed = ""  # Our e_tag, once a look has shown our body.

    async def run(self, resend: Resend, *, replaceable: bool) -> str:
        begin_us = self._clock.monotonic_us()
        last: TidelogError | None = None
        for attempt in range(resend.attempts):
            if attempt:
                await self._pause(attempt - 1, resend)
                if self._clock.monotonic_us() - begin_us > resend.patience_us:
                    break
            try:
                return await self._put()
            except (ObjectExists, ObjectChanged) as error:
                last = error
            except LocationError as error:
                last = error
                self._in_doubt = self._in_doubt or error.outcome is not Outcome.NOT_APPLIED
                if isinstance(error, StoreRefused):
                    break
                if not self._in_doubt:
                    continue
            match await self._look():
                case _Found.OURS:
                    return self._landed
                case _Found.OTHERS:
                    raise self._lost(last, replaceable=replaceable) from last
                case _Found.BEFORE:
                    continue
        raise self._given_up(last) from last

    async def _put(self) -> str:
        if self._old is None:
            return await self._store.put(self._key, self._data, if_absent=True)
        return await self._store.put(self._key, self._data, if_match=self._old)

    async def _look(self) -> _Found:
        try:
            found = await self._store.get(self._key)
        except ObjectNotFound:
            return _Found.BEFORE if self._old is None else _Found.OTHERS
        except LocationError:
            # Not seen; to send again is safe, and shows more than to look again.
            return _Found.BEFORE
        if found.data == self._data:
            self._landed = found.e_tag
            return _Found.OURS
        return _Found.BEFORE if found.e_tag == self._old else _Found.OTHERS

    async def _pause(self, attempt: int, resend: Resend) -> None:
        await self._clock.sleep(
            backoff_us(attempt, self._clock, first_us=resend.first_us, most_us=resend.most_us)
        )

    def _lost(self, last: TidelogError | None, *, replaceable: bool) -> TidelogError:
        if self._in_doubt and replaceable:
            return OutcomeUnknown(
                "an attempt was left in doubt, and somebody else's object is there now, "
                "perhaps in place of ours: look into it for traces of ours",
                key=self._key,
            )
        if isinstance(last, ObjectExists | ObjectChanged):
            return type(last)(last.sentence, key=self._key)
        if self._old is None:
            return ObjectExists("somebody else created the object", key=self._key)
        return ObjectChanged("somebody else replaced the object", key=self._key)

    def _given_up(self, last: TidelogError | None) -> TidelogError:
        if self._in_doubt:
            return LocationError(
                "the store does not answer, and whether the put landed is not known: "
                "read back before deciding again",
                outcome=Outcome.UNKNOWN,
                key=self._key,
                store=self._store.url,
                reason=last,
            )
        return last or LocationError("nothing was sent", key=self._key)
