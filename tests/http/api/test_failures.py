"""Errors over HTTP: each has a status, and becomes the same class in the client."""

from __future__ import annotations

import pytest

from tidelog import errors
from tidelog.errors import (
    CorruptionError,
    Fenced,
    LocationError,
    LogFull,
    NoSuchLog,
    NoSuchSegment,
    Outcome,
    OutcomeUnknown,
    SequenceRetired,
    TidelogError,
    UsageError,
)
from tidelog.http.api import failures
from tidelog.http.api.failures import answer_of, error_of, error_of_status, status_of

TABLE = [
    (UsageError("x"), 400),
    (NoSuchLog("x"), 404),
    (NoSuchSegment("x"), 404),
    (SequenceRetired("x"), 410),
    (Fenced("x"), 409),
    (LogFull("x", records=[(b"a", b"b")]), 429),
    (LocationError("x"), 503),
    (LocationError("x", outcome=Outcome.UNKNOWN), 500),
    (Fenced("x", outcome=Outcome.UNKNOWN), 500),
    (OutcomeUnknown("x"), 500),
    (CorruptionError("x"), 500),
    (errors.HandleError("x"), 503),
    (failures.Unauthorized("x"), 401),
    (failures.ShuttingDown("x"), 503),
    (failures.NotReady("x"), 503),
]


@pytest.mark.parametrize(("error", "status"), TABLE, ids=lambda one: type(one).__name__)
def test_an_error_comes_back_as_it_was(error: TidelogError, status: int) -> None:
    """Class, kind, outcome and sentence of an error survive the transfer."""
    found = error_of(answer_of(error), status_of(error))

    assert status_of(error) == status
    assert type(found) is type(error)
    assert (found.kind, found.outcome) == (error.kind, error.outcome)
    assert str(error) in found.sentence


def test_what_is_unknown_is_never_asked_for_again_by_itself() -> None:
    """UNKNOWN is a 500, since proxies and clients retry 502 to 504 and 429."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, TidelogError):
            error = kind("x", outcome=Outcome.UNKNOWN)
            assert status_of(error) == 500, kind


def test_an_answer_of_no_keyed_log_is_told_so() -> None:
    """A proxy's error page does not say whether the records were appended."""
    assert error_of_status(502, "<html>bad gateway").outcome is Outcome.UNKNOWN
    assert error_of_status(403, "no").outcome is Outcome.NOT_APPLIED


def test_an_error_that_is_not_known_here_has_its_kind() -> None:
    """A server may be newer than a client: an unknown error name becomes the class of its kind."""
    answer = answer_of(UsageError("x"))
    for name in ("Newer", "Outcome", "require", "__doc__"):
        told = type(answer)(message="x", kind="usage", outcome="unknown?", error=name)
        found = error_of(told, 400)
        assert type(found) is UsageError
        assert found.outcome is Outcome.UNKNOWN
