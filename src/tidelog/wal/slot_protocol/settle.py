"""Putting a slot's object until it is known what is in the slot.

A slot is created once. So to send the same bytes again does no harm, and an object that is there
already is either these bytes or the end of this writer.
"""

from __future__ import annotations

from tidelog.clock import Clock, backoff_us
from tidelog.errors import (
    LocationError,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    StoreRefused,
)
from tidelog.store.conditional import DEFAULT_RESEND, Resend
from tidelog.store.port import Store


async def settle(
    store: Store, path: str, data: bytes, *, clock: Clock, resend: Resend = DEFAULT_RESEND
) -> bytes:
    """Create an object unless there is one; return the bytes that are there: ours, or another's.

    Raises:
        LocationError: the store did not answer in all that time; UNKNOWN unless it is known that
        nothing was stored.
    """
    begin_us, in_doubt = clock.monotonic_us(), False
    last: Exception | None = None
    for attempt in range(resend.attempts):
        if attempt:
            await clock.sleep(
                backoff_us(attempt - 1, clock, first_us=resend.first_us, most_us=resend.most_us)
            )
            if clock.monotonic_us() - begin_us > resend.patience_us:
                break
        try:
            await store.put(path, data, if_absent=True)
        except ObjectExists:
            in_doubt = True
        except LocationError as error:
            in_doubt = in_doubt or error.outcome is not Outcome.NOT_APPLIED
            last = error
            if isinstance(error, StoreRefused):
                break
            continue
        else:
            return data
        try:
            return (await store.get(path)).data
        except ObjectNotFound as error:
            last = error  # Collected since; or a store that does not say the same twice.
        except LocationError as error:
            last = error
    raise LocationError(
        "the store does not answer, and whether the put landed is not known"
        if in_doubt
        else "the store did not take an object",
        outcome=Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED,
        path=path,
        store=store.url,
        reason=last,
    ) from last
