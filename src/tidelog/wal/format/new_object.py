"""Objects that are to be stored because something stored after them will name them. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object that a manifest is to name: a snapshot, or a list of epochs."""

    path: str
    data: bytes
