"""Checks of the types of a `SourceSpec`'s fields. Pure.

Options of the command line always have the right type, but a program may pass any value.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tidelog.collection.formats.csv.guess import CsvOptions
from tidelog.core.arguments import check_kind, check_whole, quoted
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.collection.create import SourceSpec

_TEXTS: Final = {
    "kind": "files",
    "format": "csv",
    "envelope": "upsert",
    "time_column": "at",
    "time_unit": "ms",
    "max_ahead": "1d",
    "lateness": "10m",
    "delete_when": "gone = true",
    "schema": "flight int, day date",
}


def check_types(spec: SourceSpec) -> None:
    """Check the types of a spec's fields.

    Raises:
        UsageError: a field has another type; the message has an example of the right one.
    """
    for name, such in _TEXTS.items():
        value = getattr(spec, name)
        if value is not None:
            check_kind(value, str, f"{name} must be a str, such as {such!r}")
    _check_several("key", spec.key, ("id",), str)
    if spec.files is not None and not isinstance(spec.files, str | os.PathLike):
        _check_several("files", spec.files, ("./2025", "./inbox"), str | os.PathLike)
    if not all(isinstance(text, str) for one in spec.settings.items() for text in one):
        raise UsageError(
            "settings must be a mapping of names to str, such as {'rate': '100'}",
            found=quoted(spec.settings),
        )
    check_whole(spec.shards, "shards")
    check_kind(spec.csv, CsvOptions, "csv must be a tidelog.CsvOptions")


def _check_several(name: str, value: object, such: tuple[str, ...], of: object) -> None:
    # A single text is a sequence too, and its letters would count as names.
    several = isinstance(value, tuple | list)
    if not several or not all(isinstance(one, of) for one in value):  # type: ignore[arg-type,attr-defined]
        raise UsageError(f"{name} must be a tuple of str, such as {such!r}", found=quoted(value))
