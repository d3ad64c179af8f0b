"""Faults that were found and are not mended yet: each with its reason, and gone with its mend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fuzz.asking import BLIND, Complaint
from fuzz.mutation import Mutation
from fuzz.specimens import Specimen

Rule = Callable[[Complaint, Sequence[Mutation], Specimen], bool]


def pins(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """A pin that is a copy of another is believed, and scrub reads no pins."""
    is_of_pins = "pin" in complaint.step or (complaint.kind == BLIND and "pin" in complaint.told)
    return is_of_pins and any(each.role == "pin" for each in done)


RULES: Final[tuple[Rule, ...]] = (pins,)


def known_as(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> str:
    """Return which known fault a complaint is of; empty if it is a new one."""
    for rule in RULES:
        if rule(complaint, done, specimen):
            return (rule.__doc__ or "").partition("\n")[0]
    return ""
