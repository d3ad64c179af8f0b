"""An extension of griffe: docstrings in the form that its parser reads.

Methods of the blocking classes have the docstrings of the awaited ones. Each error of ``Raises:``
becomes one line, because the parser drops a line that continues another without an indent.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

_RAISED = re.compile(r"[A-Z]\w+(?:, [A-Z]\w+)*: ")


class Inherit(griffe.Extension):
    """Read docstrings that a class gets when it is imported, and prepare all of them."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Prepare the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = joined(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **options: Any) -> None:
        """Document a class's methods and properties as `documented_as` of the portal does."""
        if not cls.module.path.startswith("tidelog.blocking"):
            return
        blocking = getattr(importlib.import_module(cls.module.path), cls.name, None)
        for name, member in {**cls.attributes, **cls.functions}.items():
            text = inspect.getdoc(getattr(blocking, name, None))
            if text and not name.startswith("_") and member.docstring is None:
                member.docstring = griffe.Docstring(
                    joined(text), parent=member, parser="google", parser_options={"warnings": False}
                )


def joined(text: str) -> str:
    """Return a docstring with each error of ``Raises:`` on a line of its own."""
    lines: list[str] = []
    is_raises = False
    for line in inspect.cleandoc(text).splitlines():
        if not line.startswith(" "):
            is_raises = line == "Raises:"
            lines.append(line)
        elif is_raises and not _RAISED.match(line.strip()) and lines[-1] != "Raises:":
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines)
