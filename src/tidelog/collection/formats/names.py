"""Names of columns that differ by upper and lower case alone, in files and in a source. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def match_names(names: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Return the names of a file, or of a line, as a source spells them, whatever their case.

    A name that is spelled as the source does counts before all others, and of those the first one.
    Others keep their spelling, and so they are no columns of the source.
    """
    known = {name.casefold(): name for name in wanted}
    taken = {*names} & {*known.values()}
    found: list[str] = []
    for name in names:
        own = known.get(name.casefold(), name)
        found.append(name if own in taken else own)
        taken.add(own)
    return found


def spelled_once(names: Iterable[str]) -> list[str]:
    """Return the first spelling of each name."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.casefold(), name)
    return list(found.values())


def twin_of(name: str, wanted: Iterable[str]) -> str | None:
    """Return the wanted name that differs from a name by case alone, if there is one."""
    return next((one for one in wanted if one != name and one.casefold() == name.casefold()), None)
