"""What Spark says of its failures, brought down to a sentence. Pure."""

from __future__ import annotations

import re
from typing import Final

CAUSE_MAX: Final = 400

# What was raised stands below the frames, which are indented.
_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
_JAVA: Final = re.compile(r"^: (.*)$", re.MULTILINE)
_CLASS: Final = re.compile(r"(?:[a-z_][\w$]*\.)+[A-Z][\w$]*: ")


def describe_failure(text: str) -> str:
    """Give what an exception of Spark's says was wrong: what Python raised in a task, else what the JVM did.

    Shape: ``text`` is the exception as a string: a Java stack trace, or a Python one, of many lines.
    """
    raised = _PYTHON.findall(text)
    thrown = _JAVA.search(text)
    if raised:
        cause = raised[-1]
    elif thrown:
        # A line names each exception that wraps another; the last of them is the cause.
        cause = _CLASS.split(thrown.group(1))[-1]
    else:
        cause = text.strip().partition("\n")[0]
    return cause.strip()[:CAUSE_MAX]
