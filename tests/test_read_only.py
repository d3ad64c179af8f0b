"""Read-only connections: each read sends only gets and lists, and each write is refused."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import methodcaller
from typing import Any, Final

import pytest

import tidelog
from kit import blocking_source
from kit.filled_lake import filled_store
from tidelog.blocking import logs, shards
from tidelog.blocking.portal import Portal
from tidelog.errors import Outcome, UsageError
from tidelog.keyed.values import Keys
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.read_only import WRITES
from tidelog.testing.recorded import RecordedStore

REFUSED: Final = "the connection is read-only: connect without read_only= to write"
AT: Final = datetime(2030, 1, 1, tzinfo=UTC)

Handle = Callable[[Any], Any]  # From a location, awaited or blocking, to a handle.
Call = Callable[[Any], Any]

HANDLES: Final[dict[str, Handle]] = {
    "Location": lambda lake: lake,
    "Logs": lambda lake: lake.logs,
    "Log": lambda lake: lake.log("slot"),
    "KeyedLogs": lambda lake: lake.keyed,
    "KeyedReader": lambda lake: lake.keyed.reader("keyed"),
    "KeyedLog": lambda lake: lake.keyed.open("keyed"),
    "Shards": lambda lake: lake.shards,
    "Shard": lambda lake: lake.shard("shard"),
    "ShardSnapshot": lambda lake: lake.shard("shard").snapshot(1),
    "Transactions": lambda lake: lake.shards.transactions("both"),
    "Collections": lambda lake: lake.collections,
    "Contents": lambda lake: lake.transaction().snapshot("table"),
    "Collection": lambda lake: lake.collection("files"),
    "Tables": lambda lake: lake.tables,
    "Table": lambda lake: lake.table("table"),
    "TableTransaction": lambda lake: lake.transaction(),
    "Renditions": lambda lake: lake.renditions,
    "Sources": lambda lake: lake.sources,
}
OTHERS: Final[dict[str, Handle]] = {
    "Log": lambda lake: lake.log("manifest"),
    "Shard": lambda lake: lake.shard("first"),
    "Collection": lambda lake: lake.collection("files_errors"),
    "Table": lambda lake: lake.table("direct"),
}
# Only a method that is refused returns these handles.
UNREACHABLE: Final = {"Appender": "appender", "LeasedReader": "lease", "Transaction": "begin"}
# The rows that a scan of a keyed log returns: it has no method that writes.
SCANNED: Final = {"KeyedScan"}
# `tests/spark/test_read_only.py` has these.
ON_SPARK: Final = {"to_spark", "spark_view"}


def then(found: Any, work: Call) -> Any:
    """Return the result of ``work`` on a value, which the awaited API has to await first."""

    async def awaited() -> Any:
        return await work(await found)

    return awaited() if inspect.isawaitable(found) else work(found)


def by_name(*names: str) -> dict[str, Call]:
    return {name: methodcaller(name) for name in names}


def to_polars(rows: Any) -> Any:
    pytest.importorskip("polars")
    return rows.to_polars()


ROWS: Final = by_name("to_arrow", "to_batches", "to_duckdb", "to_pandas") | {"to_polars": to_polars}
KEYED: Final = by_name("checkpoints", "describe", "keys", "next_sequence", "segments", "close") | {
    "count": lambda log: log.count(b"a"),
    "count_approximate": lambda log: log.count_approximate(b"a"),
    "follow": lambda log: log.follow(b"a", start=0),
    "refresh": lambda log: log.refresh(),
    "scan": lambda log: log.scan(Keys.all()),
    "sequence_at": lambda log: log.sequence_at(AT),
}
COLLECTION: Final = by_name("consolidated", "describe", "scan", "snapshot") | {
    "changes": lambda one: one.changes(since=0),
    "listen": lambda one: one.listen(since=0),
}
READS: Final[dict[str, dict[str, Call]]] = {
    "Location": {
        "collection": lambda lake: lake.collection("files"),
        "log": lambda lake: lake.log("slot"),
        "shard": lambda lake: lake.shard("shard"),
        "sql": lambda lake: lake.sql('SELECT * FROM "table"'),
        "table": lambda lake: lake.table("table"),
        "transaction": lambda lake: lake.transaction(),
    },
    "Logs": by_name("list")
    | {
        "open": lambda logs: logs.open("slot"),
        "export": lambda logs: logs.export("manifest", MemoryStore()),
    },
    "Log": by_name(
        "bounds", "close", "cursors", "describe", "follow", "fragments", "pins", "scan", "scrub"
    )
    | {
        "fetch": lambda log: then(log.fragments(), lambda found: log.fetch(found[0])),
        "load_cursor": lambda log: log.load_cursor("cursor"),
        "position_at": lambda log: log.position_at(AT),
        "scan_pin": lambda log: log.scan_pin("pin"),
        "streams": lambda log: log.streams(),
    },
    "KeyedLogs": by_name("list")
    | {
        "open": lambda logs: logs.open("keyed"),
        "reader": lambda logs: logs.reader("keyed", checkpoint="point"),
    },
    "KeyedReader": KEYED,
    "KeyedLog": KEYED
    | by_name("durable_sequence", "flush", "scrub")
    | {"on_durable": lambda log: log.on_durable(lambda _: None)},
    "Contents": ROWS,
    "Shards": by_name("list")
    | {
        "find": lambda shards: shards.find("first"),
        "open": lambda shards: shards.open("shard"),
        "transactions": lambda shards: shards.transactions("both"),
    },
    "Shard": by_name("schemas", "since", "upper")
    | {
        "listen": lambda shard: shard.listen(0),
        "snapshot": lambda shard: shard.snapshot(1),
        "within": lambda shard: shard.within(10_000_000),
    },
    "ShardSnapshot": ROWS | {"splits": lambda snapshot: snapshot.splits(2)},
    "Transactions": by_name("tables", "upper")
    | {
        "listen": lambda both: both.listen("first", 0),
        "snapshot": lambda both: both.snapshot("first", 1),
    },
    "Collections": by_name("list") | {"open": lambda some: some.open("files")},
    "Collection": COLLECTION,
    "Tables": by_name("list") | {"open": lambda tables: tables.open("table")},
    "Table": COLLECTION | by_name("history"),
    "TableTransaction": {
        "commit": lambda tx: tx.commit(),
        "snapshot": lambda tx: tx.snapshot("table"),
    },
    "Renditions": {
        "list": lambda some: some.list("files"),
        "describe": lambda some: some.describe("files"),
        "history": lambda some: some.history("files"),
        "diff": lambda some: some.diff("files", "files"),
    },
    "Sources": by_name("list")
    | {
        "find": lambda sources: sources.find("files"),
        "status": lambda sources: sources.status("files"),
    },
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    return filled_store(tmp_path_factory.mktemp("rows"))


async def settled(found: Any) -> Any:
    """Return the result of an awaited call; of an iterator the first item."""
    if inspect.isawaitable(found):
        found = await found
    if isinstance(found, AsyncIterator) or hasattr(type(found), "__aiter__"):
        items = aiter(found)
        await anext(items, None)
        if hasattr(items, "aclose"):
            await items.aclose()
    return found


def public_methods(kind: str) -> set[str]:
    """Return the public methods of a handle, without those for tidelog's own engines."""
    twins = blocking_source.TWINS
    methods = {name for name, _ in inspect.getmembers(twins[kind].cls, inspect.isfunction)}
    for base in twins[kind].cls.__mro__:
        methods -= twins[base.__name__].internal if base.__name__ in twins else set()
    return {name for name in methods if not name.startswith("_")}


def called(handle: Any, name: str) -> Any:
    """Call a method with an argument for each parameter that has no default."""
    method = getattr(handle, name)
    parameters = inspect.signature(method).parameters.values()
    needed = [one for one in parameters if one.default is one.empty]
    given = [sample(one) for one in needed if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: sample(one) for one in needed if one.kind is one.KEYWORD_ONLY}
    return method(*given, **named)


def sample(parameter: inspect.Parameter) -> Any:
    """Return an argument; the blocking handles take another handle only as their own class."""
    twins = {name: getattr(module, name) for name, module in (("Shard", shards), ("Log", logs))}
    twin = twins.get(str(parameter.annotation))
    return None if twin is None else twin(None, None)


@contextmanager
def blocking(store: RecordedStore) -> Iterator[tidelog.Location]:
    portal = Portal()
    opened = open_location("memory://", store=store, read_only=True)
    with tidelog.Location(portal, portal.run(opened)) as lake:
        yield lake


CASES: Final = [
    (f"{kind} {which}", kind, handle)
    for which, handles in (("first", HANDLES), ("other", OTHERS))
    for kind, handle in handles.items()
]
# Logs in wal3's form lack pins and streams, and a direct table lacks a history.
LACKING: Final = {"Log other": {"scan_pin", "streams", "pins"}, "Table other": {"history"}}
ALL_READS: Final = [
    pytest.param(handle, call, id=f"{case}: {name}")
    for case, kind, handle in CASES
    for name, call in READS[kind].items()
    if name not in LACKING.get(case, ())
]
ALL_WRITES: Final = [
    pytest.param(handle, name, id=f"{case}: {name}")
    for case, kind, handle in CASES
    for name in sorted(public_methods(kind) & WRITES)
]


def kinds_of(store: RecordedStore) -> set[str]:
    return {one.op for one in store.records}


def test_each_public_method_reads_or_is_refused() -> None:
    """A new method of a handle belongs to `READS` here, or to `WRITES` of the package."""
    assert set(HANDLES) | set(UNREACHABLE) | SCANNED == set(blocking_source.TWINS)
    assert set(UNREACHABLE.values()) <= WRITES
    for kind, reads in READS.items():
        methods = public_methods(kind)
        assert methods - WRITES - ON_SPARK == set(reads), kind
    known = set[str]().union(*map(public_methods, blocking_source.TWINS))
    assert WRITES - known == {"add"}, "the command calls it"


@pytest.mark.parametrize(("handle", "call"), ALL_READS)
def test_an_awaited_read_sends_only_gets_and_lists(
    handle: Handle, call: Call, filled: MemoryStore
) -> None:
    """The store of the connection would refuse any other request with an error."""
    store = RecordedStore(filled)

    async def main() -> None:
        lake = await open_location("memory://", store=store, read_only=True)
        await settled(call(await settled(handle(lake))))

    asyncio.run(main())

    assert kinds_of(store) <= {"get", "refresh", "list"}


@pytest.mark.parametrize(("handle", "call"), ALL_READS)
def test_a_blocking_read_sends_only_gets_and_lists(
    handle: Handle, call: Call, filled: MemoryStore
) -> None:
    """The blocking handles read as the awaited ones do."""
    store = RecordedStore(filled)

    with blocking(store) as lake:
        found = call(handle(lake))
        if hasattr(type(found), "__iter__") and not isinstance(found, str):
            next(iter(found), None)

    assert kinds_of(store) <= {"get", "refresh", "list"}


@pytest.mark.parametrize(("handle", "name"), ALL_WRITES)
def test_an_awaited_write_is_refused_before_any_request(
    handle: Handle, name: str, filled: MemoryStore
) -> None:
    """The arguments do not matter: the call is refused before they are checked."""
    store = RecordedStore(filled)

    async def main() -> None:
        lake = await open_location("memory://", store=store, read_only=True)
        opened = await settled(handle(lake))
        store.records.clear()
        with pytest.raises(UsageError) as refused:
            await settled(called(opened, name))
        assert (refused.value.sentence, refused.value.outcome) == (REFUSED, Outcome.NOT_APPLIED)

    asyncio.run(main())

    assert store.records == []


@pytest.mark.parametrize(("handle", "name"), ALL_WRITES)
def test_a_blocking_write_is_refused_before_any_request(
    handle: Handle, name: str, filled: MemoryStore
) -> None:
    """The blocking handles refuse as the awaited ones do."""
    store = RecordedStore(filled)

    with blocking(store) as lake:
        opened = handle(lake)
        store.records.clear()
        with pytest.raises(UsageError) as refused:
            called(opened, name)

    assert (refused.value.sentence, refused.value.outcome) == (REFUSED, Outcome.NOT_APPLIED)
    assert store.records == []
