"""Spark's failures, reduced to one sentence. Pure."""

from __future__ import annotations

import re
from typing import Final

CAUSE_MAX: Final = 400

# The exception follows the frames, which are indented.
_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?P<raised>\S.*)")
_JAVA: Final = re.compile(r"^: (?P<thrown>.*)$", re.MULTILINE)
_CLASS: Final = re.compile(r"(?:[a-z_][\w$]*\.)+[A-Z][\w$]*: ")


def describe_failure(text: str) -> str:
    """Return the cause that an exception of Spark states: Python's exception, else the JVM's.

    Shape: ``text`` is the exception as a string, with many lines of Java or Python frames.
    """
    cause: str = text.strip().partition("\n")[0]
    if thrown := _JAVA.search(text):
        # The line names each exception that wraps another; the last of them is the cause.
        cause = _CLASS.split(thrown["thrown"])[-1]
    if raised := _PYTHON.findall(text):
        cause = raised[-1]
    return cause.strip()[:CAUSE_MAX]
