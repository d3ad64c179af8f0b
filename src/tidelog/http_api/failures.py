"""Errors as HTTP has them, both ways: which status stands for one, and which error a status is."""

from __future__ import annotations

from typing import Final

from tidelog import errors
from tidelog.errors import (
    Fenced,
    LocationError,
    NameTaken,
    NoSuchSegment,
    Outcome,
    SequenceRetired,
    TidelogError,
)
from tidelog.http_api.messages import ErrorAnswer


class HttpFailure(TidelogError):
    """A server refused a request for what HTTP alone knows: a token, a size, a route."""

    kind = "http"
    status = 400


class Unauthorized(HttpFailure):
    """The request has no token, or one that is not known."""

    status = 401


class Forbidden(HttpFailure):
    """The token, or the server, is for reading only."""

    status = 403


class NoSuchRoute(HttpFailure):
    """There is nothing at that path."""

    status = 404


class MethodNotAllowed(HttpFailure):
    """What is at that path is asked for in another way."""

    status = 405


class BodyTooSlow(HttpFailure):
    """The body did not come within the time that it has."""

    status = 408


class BodyTooLarge(HttpFailure):
    """The body is larger than the server takes."""

    status = 413


class WrongMediaType(HttpFailure):
    """The body is neither JSON nor protobuf."""

    status = 415


class TooMany(errors.BusyError):
    """The server does as much at once as it may."""


class ShuttingDown(errors.BusyError):
    """The server ends: ask another one, or this one when it is there again."""


class NotReady(errors.BusyError):
    """The store does not answer."""


BY_KIND: Final = {
    "usage": 400,
    "gone": 404,
    "contention": 409,
    "busy": 429,
    "handle": 503,
    "location": 503,
}
# First what is more particular.
BY_CLASS: Final[tuple[tuple[type[TidelogError], int], ...]] = (
    (NoSuchSegment, 404),
    (NameTaken, 409),
    (SequenceRetired, 410),
    (Fenced, 409),
    (ShuttingDown, 503),
    (NotReady, 503),
)
_OWN: Final = (
    *(Unauthorized, Forbidden, NoSuchRoute, MethodNotAllowed, BodyTooSlow, BodyTooLarge),
    *(WrongMediaType, TooMany, ShuttingDown, NotReady, HttpFailure),
)
RETRIED: Final = frozenset({429, 503})


def status_of(error: TidelogError) -> int:
    """Return the HTTP status that stands for an error.

    What is UNKNOWN is a 500, never one of those (502 to 504) that proxies and clients try again by
    themselves: the records may be in the log.
    """
    if isinstance(error, HttpFailure):
        return error.status
    if error.outcome is not Outcome.NOT_APPLIED:
        return 500
    for kind, status in BY_CLASS:
        if isinstance(error, kind):
            return status
    return BY_KIND.get(error.kind, 500)


def answer_of(error: TidelogError) -> ErrorAnswer:
    """Return what is said of an error."""
    return ErrorAnswer(
        message=" ".join(str(error).split("\n")),
        kind=error.kind,
        outcome=error.outcome.value,
        error=type(error).__name__,
    )


def error_of(answer: ErrorAnswer, status: int) -> TidelogError:
    """Return the error that was told, of the class that it had where it was raised."""
    kind = _class_named(answer.error) or _class_of_kind(answer.kind) or TidelogError
    try:
        outcome = Outcome(answer.outcome)
    except ValueError:
        outcome = Outcome.UNKNOWN
    error = kind.__new__(kind)
    TidelogError.__init__(error, answer.message, outcome=outcome)
    error.facts = {"status": status}
    return error


def error_of_status(status: int, text: str) -> TidelogError:
    """Return what to raise for an answer that is not the API's: a proxy's, say."""
    told = " ".join(text.split())[:200]
    sentence = f"the server answered {status}, and not as a keyed log does: {told!r}"
    if status >= 500:
        return LocationError(sentence, outcome=Outcome.UNKNOWN, status=status)
    return HttpFailure(sentence, status=status)


def _class_named(name: str) -> type[TidelogError] | None:
    for own in _OWN:
        if own.__name__ == name:
            return own
    found = getattr(errors, name, None)
    is_error = isinstance(found, type) and issubclass(found, TidelogError)
    return found if is_error else None


def _class_of_kind(kind: str) -> type[TidelogError] | None:
    known: tuple[type[TidelogError], ...] = (
        *(errors.UsageError, errors.GoneError, errors.ContentionError, errors.BusyError),
        *(errors.HandleError, errors.LocationError, errors.CorruptionError),
        *(errors.InvariantError, HttpFailure),
    )
    return next((one for one in known if one.kind == kind), None)
