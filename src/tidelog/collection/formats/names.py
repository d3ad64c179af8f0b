"""Column names of files and of a source that differ only by case. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def match_names(names: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Return the names of a file or of a line, in the source's spelling, whatever their case.

    If several names match one column, the one with the source's spelling wins, and else the first
    one. The others keep their own spelling, so they are not columns of the source.
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
    """Return the first wanted name that differs from a name only by case, if any."""
    return next((one for one in wanted if one != name and one.casefold() == name.casefold()), None)
