"""The error with which a checker reports a broken rule."""

from __future__ import annotations


class Violated(AssertionError):
    """An invariant does not hold."""


def demand(condition: object, sentence: str, **facts: object) -> None:
    """Raise Violated unless ``condition`` holds."""
    if not condition:
        raise Violated(f"{sentence} {facts}")
