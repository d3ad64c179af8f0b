"""Errors over HTTP, both ways: the status and body of an error, and the error of an answer."""

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
from tidelog.http.api.messages import ErrorAnswer


class HttpFailure(TidelogError):
    """A server refused a request for a reason that only HTTP has: a token, a size, a route."""

    kind = "http"
    status = 400


class Unauthorized(HttpFailure):
    """The request has no token, or an unknown one."""

    status = 401


class Forbidden(HttpFailure):
    """The token or the server is read-only."""

    status = 403


class NoSuchRoute(HttpFailure):
    """No route has that path."""

    status = 404


class MethodNotAllowed(HttpFailure):
    """The route does not have that method."""

    status = 405


class BodyTooSlow(HttpFailure):
    """The body did not arrive in time."""

    status = 408


class BodyTooLarge(HttpFailure):
    """The body exceeds the server's limit."""

    status = 413


class WrongMediaType(HttpFailure):
    """The body is neither JSON nor protobuf."""

    status = 415


class TooMany(errors.BusyError):
    """A limit of concurrent requests, bytes or connections is reached."""


class ShuttingDown(errors.BusyError):
    """The server is ending: use another one, or try again after its restart."""


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
# Subclasses come before their base classes.
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
    """Return the HTTP status of an error.

    An error with an UNKNOWN outcome is a 500. Proxies and clients retry 502 to 504 by themselves,
    and the records may already be in the log.
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
    """Return the answer that describes an error."""
    return ErrorAnswer(
        message=" ".join(str(error).split("\n")),
        kind=error.kind,
        outcome=error.outcome.value,
        error=type(error).__name__,
    )


def error_of(answer: ErrorAnswer, status: int) -> TidelogError:
    """Return the error that an answer describes, in its original class."""
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
    """Return the error for an answer that is not the API's, such as a proxy's."""
    excerpt = " ".join(text.split())[:200]
    sentence = f"the answer ({status}) is not from tidelog, perhaps from a proxy: {excerpt!r}"
    if status >= 500:
        return LocationError(sentence, outcome=Outcome.UNKNOWN, status=status)
    return HttpFailure(sentence, status=status)


def _class_named(name: str) -> type[TidelogError] | None:
    for own in _OWN:
        if own.__name__ == name:
            return own
    candidate = getattr(errors, name, None)
    is_error = isinstance(candidate, type) and issubclass(candidate, TidelogError)
    return candidate if is_error else None


def _class_of_kind(kind: str) -> type[TidelogError] | None:
    known: tuple[type[TidelogError], ...] = (
        *(errors.UsageError, errors.GoneError, errors.ContentionError, errors.BusyError),
        *(errors.HandleError, errors.LocationError, errors.CorruptionError),
        *(errors.InvariantError, HttpFailure),
    )
    return next((error_class for error_class in known if error_class.kind == kind), None)
