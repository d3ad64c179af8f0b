"""Errors for the callers of appends that failed, or whose outcome is unknown. Pure.

Each caller gets an error of its own. An error that is raised repeatedly keeps every frame that it
passed, and with the frames the records of all callers.
"""

from __future__ import annotations

from asyncio import CancelledError
from copy import copy
from typing import TypeVar

from tidelog.errors import (
    HandleError,
    InvariantError,
    LocationError,
    Outcome,
    OutcomeUnknown,
    TidelogError,
)
from tidelog.wal.append.batching import Batching

E = TypeVar("E", bound=BaseException)


def copy_of(error: E) -> E:
    """Return a copy of an error that was not raised yet."""
    try:
        again = copy(error)
    except Exception:  # noqa: BLE001 - a foreign error that cannot be copied is shared
        return error
    again.__cause__ = error.__cause__
    return again


def unsent_error(reason: BaseException) -> BaseException:
    """Return the error for records that were never sent, or are certainly not in the log."""
    if isinstance(reason, TidelogError):
        if reason.outcome is Outcome.NOT_APPLIED:
            return copy_of(reason)
        return LocationError(
            "the store failed before the records could be sent: append them again later",
            reason=reason,
        )
    if isinstance(reason, CancelledError):
        return HandleError(
            "the log's writer was stopped before the records were sent: open the log again"
        )
    if isinstance(reason, Exception):
        return InvariantError(
            "the log's writer failed, and the records were not sent: report this bug",
            reason=repr(reason),
        )
    return copy_of(reason)


def sent_error(reason: BaseException) -> BaseException:
    """Return the error for records that were sent and may be in the log."""
    if isinstance(reason, OutcomeUnknown):
        return copy_of(reason)
    if isinstance(reason, TidelogError) and not isinstance(reason, LocationError):
        again = copy_of(reason)
        again.outcome = Outcome.UNKNOWN
        return again
    if isinstance(reason, Exception | CancelledError):
        return OutcomeUnknown(
            "the store did not answer, so the records may be in the log: append another record "
            "with the same handle, then search the log for the records before you append them "
            "again",
            reason=reason if isinstance(reason, TidelogError) else repr(reason),
        )
    return copy_of(reason)


def out_of_reach(path: str, reason: BaseException | None) -> OutcomeUnknown:
    """Return the error for records that were sent to a store that no longer answers."""
    return OutcomeUnknown(
        "the store cannot be reached, so the records may be in the log: when the store answers "
        "again, append another record with the same handle, then search the log for the records "
        "before you append them again",
        path=path,
        reason=reason,
    )


def not_encoded(error: Exception) -> InvariantError:
    """Return the error for records that could not be encoded."""
    return InvariantError(
        "these records could not be encoded, and none were sent: report this bug",
        reason=repr(error),
    )


def closed() -> HandleError:
    """Return the error of an append to a closed writer."""
    return HandleError("the log's writer is closed: open the log again")


def no_answer(batching: Batching, heard: BaseException | None) -> LocationError:
    """Return the error of a store that acknowledges nothing; ``heard`` is its last error."""
    told = f"the store has acknowledged nothing for {batching.patience_us / 1e6:g} s"
    if heard is None:
        return LocationError(
            f"{told}: check that this machine can reach it, then search the log for the records "
            "before you append them again",
            outcome=Outcome.UNKNOWN,
        )
    return LocationError(
        f"{told}, and refused the last request: correct the reason, then search the log for the "
        "records before you append them again",
        outcome=Outcome.UNKNOWN,
        reason=heard,
    )


def refusal(trouble: BaseException | None, batching: Batching) -> LocationError:
    """Return the error for an append that waited as long as it may and was never sent."""
    return LocationError(
        f"the store has acknowledged nothing for {batching.patience_us / 1e6:g} s, and these "
        "records were not sent: append them again after the store recovers",
        reason=trouble or "the store does not answer",
    )
