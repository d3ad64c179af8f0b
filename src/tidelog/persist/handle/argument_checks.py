"""Checks of callers' arguments, made before any request to a store. Pure.

A `Frontier` checks its times itself, and updates are checked when they become parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from tidelog.core.arguments import check_kind, check_whole, quoted
from tidelog.core.frontier import Frontier
from tidelog.errors import UsageError
from tidelog.persist.states.state import Token

NAME_MAX: Final = 128
TIMEOUT: Final = "timeout_us"


def check_timeout(timeout_us: object) -> None:
    """Refuse a value that is neither None nor a number of microseconds.

    Raises:
        UsageError: it is neither.
    """
    if timeout_us is not None:
        check_whole(timeout_us, TIMEOUT)


def check_flag(value: object, what: str) -> None:
    """Refuse a value that is neither True nor False; a text such as "no" would count as True.

    Raises:
        UsageError: it is neither.
    """
    check_kind(value, bool, f"{what} must be True or False")


def check_owner(name: object, of: str) -> str:
    """Return the name of a hold or a writer if it is valid.

    Raises:
        UsageError: the name is not a text of 1 to 128 printable characters.
    """
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise UsageError(
            f"{quoted(name)} cannot be the name of a {of}: use a str of 1 to {NAME_MAX} printable "
            "characters"
        )
    return name


def check_fencing(token: object) -> None:
    """Refuse a value that is not a fencing token of a hold.

    Raises:
        UsageError: it is neither None nor a whole number from 0; 0 is the same as no token.
    """
    if token is not None:
        check_whole(token, "the token of a hold")


def check_write_token(token: Token | None) -> None:
    """Refuse a value that is not the token of a write.

    Raises:
        UsageError: it is neither None nor a pair of a writer's name and a number.
    """
    given: object = token
    if given is None:
        return
    if not isinstance(given, tuple) or len(given) != 2:
        raise UsageError(
            'token= must be a pair of a writer\'s name and a number, such as ("till", 7), not '
            f"{quoted(given)}"
        )
    check_owner(given[0], "writer")
    check_whole(given[1], "the number of a token")


def check_tables(updates: Mapping[str, pa.Table]) -> Mapping[str, pa.Table]:
    """Return the updates of several shards if they are tables by name.

    Raises:
        UsageError: they are not.
    """
    given: object = updates
    if not isinstance(given, Mapping):
        told = type(given).__name__
        raise UsageError(
            f"updates of several shards must be a mapping of names to tables, not {told}"
        )
    for name, table in given.items():
        check_kind(table, pa.Table, f"updates of {quoted(name)} must be a pyarrow table")
    return updates


def check_holds(holds: Mapping[str, Frontier] | None) -> dict[str, Frontier]:
    """Return the holds to move as frontiers, by name; a caller may give times.

    Raises:
        UsageError: ``holds`` is not a mapping of names to frontiers or times.
    """
    given: object = holds
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"holds must be a mapping of names to times, not {type(given).__name__}")
    return {check_owner(name, "hold"): Frontier.of(at) for name, at in given.items()}
