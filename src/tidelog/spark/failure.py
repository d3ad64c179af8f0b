"""What Spark says of its failures, brought down to a sentence. Pure."""

from __future__ import annotations

import re
from typing import Final

CAUSE_MAX: Final = 400

# What was raised stands below the frames, which are indented.
_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?P<raised>\S.*)")
_JAVA: Final = re.compile(r"^: (?P<thrown>.*)$", re.MULTILINE)
_CLASS: Final = re.compile(r"(?:[a-z_][\w$]*\.)+[A-Z][\w$]*: ")


def describe_failure(text: str) -> str:
    """Return what an exception of Spark's says is wrong: what Python raised, else what the JVM did.

    Shape: ``text`` is the exception as a string, many lines of Java or Python frames.
    """
    cause: str = text.strip().partition("\n")[0]
    if thrown := _JAVA.search(text):
        # The line names each exception that wraps another; the last of them is the cause.
        cause = _CLASS.split(thrown["thrown"])[-1]
    if raised := _PYTHON.findall(text):
        cause = raised[-1]
    return cause.strip()[:CAUSE_MAX]
