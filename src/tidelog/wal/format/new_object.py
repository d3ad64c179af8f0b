"""Objects to store before the object that names them. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object that a manifest will name: a snapshot or a list of epochs."""

    path: str
    data: bytes
