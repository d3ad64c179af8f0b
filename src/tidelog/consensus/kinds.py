"""The kinds of consensus, and where each is: ``store``, ``sqlite:PATH``, ``postgresql://...``.

A location is made with one kind, and its mark says which, and where it is, without a password.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tidelog.clock import Clock
from tidelog.consensus.port import ENVIRONMENT, Copies
from tidelog.consensus.sql import KEYS, Database, SqlConsensus
from tidelog.consensus.store import ROOT, StoreConsensus
from tidelog.errors import UsageError
from tidelog.store.port import Store

STORE: Final = "store"
SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
KINDS: Final = (STORE, SQLITE, POSTGRES)
_SECRETS: Final = frozenset({"password", "sslpassword", "passfile"})


@dataclass(frozen=True, slots=True)
class ConsensusPlace:
    """A kind of consensus and where it is; ``told`` is that without a secret."""

    kind: str
    url: str = ""
    told: str = ""


def parse_consensus(text: str) -> ConsensusPlace:
    """Read where consensus is.

    Raises:
        UsageError: it is of no known form; the message does not repeat a password.
    """
    scheme, mark, rest = text.partition(":")
    if text == STORE:
        return ConsensusPlace(STORE)
    if scheme == SQLITE and mark and rest.lstrip("/"):
        path = rest[2:] if rest.startswith("///") else rest
        if not path.startswith("//"):
            place = str(Path(path).expanduser().absolute())
            return ConsensusPlace(SQLITE, f"sqlite:{place}", f"sqlite:{place}")
    if scheme in ("postgres", "postgresql") and rest.startswith("//"):
        return ConsensusPlace(POSTGRES, text, without_password(text))
    raise UsageError(
        "consensus is 'store', 'sqlite:PATH' or 'postgresql://USER@HOST/DATABASE'",
        given=without_password(text),
    )


def without_password(url: str) -> str:
    """Return a URL without what is secret in it."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
        user = host[0].partition(":")[0]
        query = [(n, v) for n, v in parse_qsl(parts.query) if n not in _SECRETS]
    except ValueError:
        return url.partition(":")[0] + ":..."
    netloc = f"{user}@{host[2]}" if user else host[2]
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query), ""))


def check_same(asked: ConsensusPlace, kind: str, told: str) -> None:
    """Refuse a location whose consensus is of another kind than was asked for.

    Raises:
        UsageError: it is.
    """
    if asked.kind != kind:
        raise UsageError(
            f"the location was made with consensus {told or kind!r}: leave --consensus and "
            f"{ENVIRONMENT} out, or give that one",
            asked=asked.told or asked.kind,
        )


async def found_location(place: ConsensusPlace, *, location: str, clock: Clock) -> None:
    """Have a database know of a location that is about to be made with its consensus there.

    Raises:
        LocationError: it does not answer.
    """
    if place.kind == STORE:
        return
    database = _database(place, clock=clock, make=True)
    await SqlConsensus(database=database, location=location, clock=clock).found()
    await database.close()


async def check_there(place: ConsensusPlace, *, clock: Clock) -> None:
    """Check that a database can be used for consensus, where that is in one; make SQLite's file.

    Raises:
        LocationError: it cannot; the sentence says what to do.
    """
    if place.kind == STORE:
        return
    database = _database(place, clock=clock, make=True)
    await database.run(KEYS, {"location": "", "prefix": ""})
    await database.close()


def open_consensus(
    place: ConsensusPlace, *, location: str, store: Store, clock: Clock, founded: bool = False
) -> Copies:
    """Return consensus at a place; nothing is read or written yet.

    Where a location was ``founded`` (see `Copies`), a place that knows nothing of it is refused.

    ``location`` is the id by which records are told from those of others, and of what was there
    before a move; it is empty where consensus has been in the store from the first.
    """
    if place.kind == STORE:
        root = f"{ROOT}-{location}" if location else ROOT
        return StoreConsensus(store=store, clock=clock, root=root)
    database = _database(place, clock=clock, make=not founded)
    return SqlConsensus(database=database, location=location, clock=clock, founded=founded)


def _database(place: ConsensusPlace, *, clock: Clock, make: bool) -> Database:
    # Loaded where they are used: most locations have their consensus in the store.
    if place.kind == SQLITE:
        from tidelog.consensus.sqlite import sqlite_database

        path = Path(place.url.removeprefix("sqlite:"))
        return sqlite_database(path, clock=clock, make=make)
    from tidelog.consensus.postgres import postgres_database

    return postgres_database(place.url, told=place.told, clock=clock)
