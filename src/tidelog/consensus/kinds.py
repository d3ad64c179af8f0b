"""The kinds of consensus and their places: ``store``, ``sqlite:PATH``, ``postgresql://...``.

A location is created with one kind. Its marker states the kind, and the place without a password.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tidelog.consensus.port import ENVIRONMENT, Copies
from tidelog.consensus.sql import KEYS, Database, SqlConsensus
from tidelog.consensus.store import ROOT, StoreConsensus
from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.port import Store

STORE: Final = "store"
SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
KINDS: Final = (STORE, SQLITE, POSTGRES)
_SECRETS: Final = frozenset({"password", "sslpassword", "passfile"})


@dataclass(frozen=True, slots=True)
class ConsensusPlace:
    """A kind of consensus and its URL; ``told`` is the URL without secrets, for messages."""

    kind: str
    url: str = ""
    told: str = ""


def parse_consensus(text: str) -> ConsensusPlace:
    """Parse the text that names a place of consensus.

    Raises:
        UsageError: the text has no known form; the message does not repeat a password.
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
        "consensus= must be 'store', 'sqlite:PATH' or 'postgresql://USER@HOST/DATABASE'",
        given=without_password(text),
    )


def without_password(url: str) -> str:
    """Return a URL without its password and other secrets."""
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
    """Refuse a location whose consensus is not of the kind that the caller asked for.

    Raises:
        UsageError: the kinds differ.
    """
    if asked.kind != kind:
        raise UsageError(
            f"the location was created with consensus {told or kind!r}: omit consensus= and "
            f"{ENVIRONMENT}, or pass that value",
            asked=asked.told or asked.kind,
        )


async def found_location(place: ConsensusPlace, *, location: str, clock: Clock) -> None:
    """Register a location in the database, before the location is created.

    A later open can then distinguish its own database from one that is empty or another.

    Raises:
        LocationError: the database does not answer.
    """
    if place.kind == STORE:
        return
    database = _database(place, clock=clock, make=True)
    await SqlConsensus(database=database, location=location, clock=clock).found()
    await database.close()


async def check_there(place: ConsensusPlace, *, clock: Clock) -> None:
    """Check that the place of consensus is usable, if it is a database; create SQLite's file.

    Raises:
        LocationError: the database cannot be used; the message has the remedy.
    """
    if place.kind == STORE:
        return
    database = _database(place, clock=clock, make=True)
    await database.run(KEYS, {"location": "", "prefix": ""})
    await database.close()


def open_consensus(
    place: ConsensusPlace,
    *,
    location: str,
    store: Store,
    clock: Clock,
    founded: bool = False,
    read_only: bool = False,
) -> Copies:
    """Return the consensus at a place, without any I/O.

    If the location was ``founded`` (see `Copies`), a database without its sign is refused. With
    ``read_only``, a database is opened for reading only.

    ``location`` is an id. It separates the location's records from those of other locations, and
    from records left behind by an earlier move. It is empty if consensus was always in the store.
    """
    if place.kind == STORE:
        root = f"{ROOT}-{location}" if location else ROOT
        return StoreConsensus(store=store, clock=clock, root=root)
    database = _database(place, clock=clock, make=not founded, read_only=read_only)
    return SqlConsensus(database=database, location=location, clock=clock, founded=founded)


def _database(
    place: ConsensusPlace, *, clock: Clock, make: bool, read_only: bool = False
) -> Database:
    # Import the driver only if it is used: most locations have their consensus in the store.
    if place.kind == SQLITE:
        from tidelog.consensus.sqlite import ReadOnlyFile, sqlite_database

        path = Path(place.url.removeprefix("sqlite:"))
        if read_only:
            return ReadOnlyFile(path=path, clock=clock)
        return sqlite_database(path, clock=clock, make=make)
    from tidelog.consensus.postgres import postgres_database

    return postgres_database(place.url, told=place.told, clock=clock, read_only=read_only)
