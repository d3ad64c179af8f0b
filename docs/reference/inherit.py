"""An extension of griffe: blocking methods have the docstrings of the awaited ones."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe

from tidelog.portal import Blocking


class Inherit(griffe.Extension):
    """Copy the docstring of each awaited method to the blocking method that calls it."""

    def on_class(self, *, cls: griffe.Class, **options: Any) -> None:
        """Document the methods of one class."""
        if not cls.module.path.startswith("tidelog.sync"):
            return
        blocking = getattr(importlib.import_module(cls.module.path), cls.name, None)
        for base in getattr(blocking, "__orig_bases__", ()):
            if getattr(base, "__origin__", None) is Blocking:
                _copy(cls, base.__args__[0])


def _copy(cls: griffe.Class, awaited: type) -> None:
    for name, member in cls.functions.items():
        text = inspect.getdoc(getattr(awaited, name, None))
        if text and not name.startswith("_") and member.docstring is None:
            member.docstring = griffe.Docstring(text, parent=member)
