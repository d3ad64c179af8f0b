"""SQL over collections: DuckDB reads them in this process, all as of one time.

DuckDB asks for the rows of a collection as of an Arrow dataset, with the columns and the filter
that its plan needs. So the read skips the other columns, parts and row groups. The database has no
access to files, and knows only the collections.

DuckDB runs in a thread of its own for each query. It blocks there until rows arrive, and in the
pool of the event loop it would take the threads that decode them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Protocol, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from tidelog.collection.collection import Collection
from tidelog.collection.collections import Collections
from tidelog.collection.following import checked_patience
from tidelog.collection.formats.times import When, format_time
from tidelog.core.arguments import quoted
from tidelog.core.clock import Clock, run_all
from tidelog.errors import AsOfNotComplete, TidelogError, UsageError
from tidelog.persist.format.bounds import Box
from tidelog.persist.format.duck import MEMORY_LIMIT
from tidelog.persist.handle.listening import Patience
from tidelog.persist.read.arrow_bounds import box_of_filter, columns_of
from tidelog.persist.read.by_spark import spark_room
from tidelog.persist.read.selection import ALL_ROWS, CheckedSelection, repeated
from tidelog.persist.read.snapshot import start_after
from tidelog.predicate.predicate import told_by

ENGINES: Final = ("duckdb", "spark")
BATCH_ROWS: Final = 65_536
READ_AT_ONCE: Final = 8
# DuckDB exports these types to Arrow with other values.
NOT_IN_ARROW: Final = re.compile(r"\b(?:UHUGEINT|TIME WITH TIME ZONE|BIT)\b")
_COLUMNS_LIKE: Final = re.compile(r"Candidate bindings:[: ]*(.+)")
_OTHERS_LIKE: Final = re.compile(r"Did you mean (.+?)\??$", re.MULTILINE)
_NEAR: Final = re.compile(r'at or near "(\w+)"')
_TIME_TRAVEL: Final = re.compile(r"\b(?:TIMESTAMP|VERSION|SYSTEM_TIME)\s+AS\s+OF\b", re.IGNORECASE)
INTERRUPTS: Final = 200
INTERRUPT_SECONDS: Final = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAnswer:
    """The answer to a query, while it is computed.

    All collections are read as of ``as_of``; None if the query reads none. ``later`` has the newest
    complete time of each collection that is complete at a later time. Units: milliseconds.
    """

    schema: pa.Schema
    as_of: int | None
    later: Mapping[str, int]
    batches: AsyncGenerator[pa.RecordBatch, None]


@asynccontextmanager
async def answer(
    collections: Collections,
    query: str,
    as_of: When | None = None,
    *,
    wait: bool = False,
    timeout_us: int | None = None,
) -> AsyncGenerator[SqlAnswer, None]:
    """Run a query over collections as of ``as_of``, by default their newest common time.

    With ``wait``, wait until all of them are complete at the time, for at most ``timeout_us``.

    Raises:
        DeadlineExceeded: a collection did not become complete in time.
        UsageError: the query is invalid, fails on a row, writes, or reads a file.
        NoSuchCollection: it names a table that is no collection.
        AsOfBeforeSince, AsOfNotComplete: a collection is not readable at the time.
        CorruptionError, LocationError: the read of a collection fails.
    """
    check_unicode(query)
    patience = checked_patience(wait, timeout_us)
    run = _Run(collections.clock)
    try:
        tables = await run.call(partial(tables_of, query))
        read, listed = await opened_tables(collections, tables)
        time, later = await common_time(read, as_of, patience)
        scans = [_Scan(each, time, run) for each in at_time(read, time)] + [
            _Scan(each, None, run) for each in listed
        ]
        reader = await run.call(partial(_execute, scans, query))
        yield SqlAnswer(schema=reader.schema, as_of=time, later=later, batches=run.batches(reader))
    finally:
        await run.close()


def check_unicode(query: str) -> None:
    """Refuse a query with a lone surrogate: a shell passes bytes that are not UTF-8 as such.

    Raises:
        UsageError: the query has one.
    """
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            "the query has a lone surrogate, or bytes that are not UTF-8: write it in UTF-8",
            place=error.start,
        ) from error


class SqlEngine(Protocol):
    """An engine: `answer`, or the same on Spark."""

    def __call__(
        self,
        collections: Collections,
        query: str,
        as_of: When | None = None,
        *,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> AbstractAsyncContextManager[SqlAnswer]: ...


def engine_of(name: str, *, rows_max: int | None = None) -> SqlEngine:
    """Return the engine of a name.

    Spark computes at most ``rows_max`` rows; DuckDB computes rows as they are read.

    Raises:
        UsageError: the name is not ``duckdb`` or ``spark``, or pyspark is not installed.
    """
    if name not in ENGINES:
        raise UsageError(f"engine must be {' or '.join(ENGINES)}, not {quoted(name)}")
    if name == "duckdb":
        return answer
    if find_spec("pyspark") is None:
        raise UsageError(
            "Spark is not installed: pip install 'tidelog[spark]', or leave out the engine"
        )
    found: SqlEngine = partial(spark_room("sql").answer_on_spark, rows_max=rows_max)
    return found


@dataclass(frozen=True, slots=True)
class TablesUsed:
    """The tables that a query names, its CTEs, and whether it lists tables."""

    names: frozenset[str]
    ctes: frozenset[str]
    lists_all: bool


def tables_of(query: str, database: duckdb.DuckDBPyConnection) -> TablesUsed:
    """Return the tables that a query names.

    Raises:
        UsageError: it is not one statement that only reads.
    """
    statements = database.extract_statements(query)
    if not statements:
        raise UsageError("the query is empty: begin it with SELECT or FROM")
    if len(statements) != 1:
        raise UsageError("pass one query at a time", statements=len(statements))
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            "SQL only reads collections: begin the query with SELECT, FROM, WITH, DESCRIBE or "
            "SHOW TABLES",
            query=query,
        )
    (text,) = database.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0]
    uses = list(_uses(json.loads(text)))
    names, ctes = ({n for kind, n in uses if kind == wanted} for wanted in ("table", "cte"))
    lists_all = any(kind == "list" for kind, _ in uses)
    return TablesUsed(frozenset(names), frozenset(map(str.lower, ctes)), lists_all)


def _uses(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the names in a parse tree: of a table, of a CTE, or a use that lists tables."""
    match node:
        case {"type": "BASE_TABLE", "schema_name": "" | "main", "table_name": str() as name}:
            yield "table", name
        case {"type": "BASE_TABLE"} | {"type": "TABLE_FUNCTION"}:
            yield "list", ""  # Of information_schema, or duckdb_tables().
        case {"type": "SHOW_REF", "table_name": str() as name} if name:
            yield "list", ""
        case {"cte_map": {"map": list() as entries}}:
            yield from (("cte", str(entry["key"])) for entry in entries)
    children = node.values() if isinstance(node, dict) else node
    if isinstance(node, dict | list):
        for child in children:
            yield from _uses(child)


async def opened_tables(
    collections: Collections, tables: TablesUsed
) -> tuple[list[Collection], list[Collection]]:
    """Open the collections that a query reads, and those that it only lists."""
    catalog = await collections.controller.catalog()
    existing = sorted(catalog.collections)
    # A CTE may hide a collection in a part of the query only, so such a collection is opened, too.
    names = {_spelled(name, existing) for name in tables.names}
    read = {name for name in names if name in existing or name.lower() not in tables.ctes}
    wanted = sorted(read | (set(existing) if tables.lists_all else set()))
    if len({name.lower() for name in wanted}) < len(wanted):
        raise UsageError(
            "SQL ignores the case of names, and two collections of the query differ only in case: "
            "read them in two queries",
            names=wanted,
        )
    opened = [collections.opened(catalog, name) for name in wanted]
    return [c for c in opened if c.name in read], [c for c in opened if c.name not in read]


def _spelled(name: str, existing: Sequence[str]) -> str:
    alike = [each for each in existing if each.lower() == name.lower()]
    return name if name in alike or not alike else alike[0]


async def common_time(
    opened: Sequence[Collection], as_of: When | None, patience: Patience
) -> tuple[int | None, dict[str, int]]:
    """Return the time at which to read collections, and those that are complete at a later time.

    Raises:
        AsOfBeforeSince, AsOfNotComplete, DeadlineExceeded, UsageError: see
            `Collection.resolve_as_of`.
    """
    if not opened:
        return None, {}
    # All collections wait at once, so that the limit is that of the whole wait.
    at_once = len(opened) if patience.waits else READ_AT_ONCE
    wait, timeout_us = patience.wait, patience.timeout_us
    work = [partial(c.resolve_as_of, as_of, wait=wait, timeout_us=timeout_us) for c in opened]
    times = await run_all(work, at_once=at_once)
    time = min(times)
    for each, newest in zip(opened, times, strict=True):
        each.check_since(time)
        first = start_after(each.states_at(time), time)
        if as_of is None and newest > time and first is not None:
            earliest = opened[times.index(time)]
            remedy = (
                f"ingest {earliest.name!r} again, or pass the time to read"
                if earliest.table is None
                else "advance the tables, for example with 'tidelog table advance'"
            )
            raise AsOfNotComplete(
                f"the collections of the query have no common time: {earliest.name!r} is complete "
                f"up to {format_time(time)}, and {each.name!r} begins at {format_time(first)}; "
                f"{remedy}"
            )
    pairs = zip(opened, times, strict=True)
    return time, {each.name: newest for each, newest in pairs if newest > time}


def at_time(opened: Sequence[Collection], time: int | None) -> list[Collection]:
    """Return the handles of the renditions that are read at a time, as of the last refresh."""
    return [*opened] if time is None else [one.era_at(time) for one in opened]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounded(CheckedSelection):
    """A selection of whole columns within bounds."""

    bounds: Box

    @property
    def box(self) -> Box:
        return self.bounds


class _Scan(pads.Dataset):
    """A collection as of a time, as the dataset that DuckDB scans; without a time, only listed."""

    def __init__(self, collection: Collection, time: int | None, run: _Run) -> None:
        self.name = collection.name
        self._collection = collection
        self._time = time
        self._run = run

    @property
    def schema(self) -> pa.Schema:
        return self._collection.schema.data

    def scanner(  # type: ignore[override]
        self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: object
    ) -> _Scanner:
        """Return a scan of some columns of the rows for which ``filter`` is true; see `pads`."""
        names = list(self.schema.names if columns is None else columns) or self.schema.names[:1]
        return _Scanner(
            schema=pa.schema([self.schema.field(name) for name in names]),
            run=self._run,
            tables=partial(self._tables, names, filter),
        )

    async def _tables(
        self, names: list[str], filter: pc.Expression | None
    ) -> AsyncGenerator[pa.Table, None]:
        if self._time is None:
            raise UsageError(
                "a function hides the name of a collection: name it in FROM", name=self.name
            )
        read = set(names) if filter is None else {*names, *columns_of(filter, self.schema)}
        columns = tuple(name for name in self.schema.names if name in read)
        bounds = {} if filter is None else box_of_filter(filter, self.schema)
        selection = _Bounded(columns=columns, predicate=None, limit=None, bounds=bounds)
        reading = replace(self._collection.reading(ALL_ROWS), wanted=selection)
        async with aclosing(self._collection.contents(reading, self._time)) as pieces:
            async for piece in pieces:
                chosen = piece if filter is None else piece.filter(filter)
                for rows in repeated(chosen):
                    yield rows.select(names)


@dataclass(frozen=True, slots=True)
class _Scanner:
    """The part of Arrow's scanner that DuckDB uses."""

    schema: pa.Schema
    run: _Run
    tables: Callable[[], AsyncGenerator[pa.Table, None]]

    @property
    def projected_schema(self) -> pa.Schema:
        return self.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.run.waited(self.tables()))


class _Run:
    """One query: its database, the thread that computes it, and the reads that it waits for."""

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        # DuckDB makes the folder when it spills for the first time.
        self._folder = os.path.join(tempfile.gettempdir(), f"tidelog-sql-{clock.unique()}")
        self._thread = ThreadPoolExecutor(1, "tidelog-sql")
        self._database: duckdb.DuckDBPyConnection | None = None
        self._streams: list[AsyncGenerator[pa.Table, None]] = []
        self._waits: set[Future[Any]] = set()
        self._error: BaseException | None = None
        self._is_closing = False

    async def call(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run work in the thread of the query.

        Raises:
            UsageError: DuckDB refuses the query, or fails in it. All errors of the reads.
        """
        try:
            return await self._loop.run_in_executor(self._thread, self._work, work)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if isinstance(self._error, TidelogError | CancelledError):
                raise self._error from error
            raise _refusal(error) from error

    def _work(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        if self._database is None:
            self._database = _opened_database(self._folder)
        return work(self._database)

    async def batches(self, reader: pa.RecordBatchReader) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the batches of an answer, each computed when it is asked for."""
        while (batch := await self.call(lambda _: next(reader, None))) is not None:
            yield batch

    def waited(self, tables: AsyncGenerator[pa.Table, None]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a stream of the event loop, to a thread of DuckDB."""
        self._streams.append(tables)
        while (table := self._wait(tables)) is not None:
            yield from table.to_batches()

    def _wait(self, tables: AsyncGenerator[pa.Table, None]) -> pa.Table | None:
        future = asyncio.run_coroutine_threadsafe(_next(tables), self._loop)
        self._waits.add(future)
        if self._is_closing:
            future.cancel()
        try:
            return future.result()
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._waits.discard(future)

    async def close(self) -> None:
        """Stop the query, then close its reads, its database and its folder for spilled rows."""
        self._is_closing = True
        for future in list(self._waits):
            future.cancel()
        idle = asyncio.wrap_future(self._thread.submit(_do_nothing))
        # DuckDB forgets an interruption that comes before the query begins, so repeat it.
        for _ in range(INTERRUPTS):
            if (await asyncio.wait({idle}, timeout=INTERRUPT_SECONDS))[0]:
                break
            if self._database is not None:
                self._database.interrupt()
        end = asyncio.wrap_future(self._thread.submit(self._close_database))
        self._thread.shutdown(wait=False)
        if idle.done():
            await end
        for stream in self._streams:
            await stream.aclose()

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            shutil.rmtree(self._folder, ignore_errors=True)


def _do_nothing() -> None:
    """End at once, behind all work of the thread."""


async def _next(tables: AsyncGenerator[pa.Table, None]) -> pa.Table | None:
    return await anext(tables, None)


def _opened_database(folder: str) -> duckdb.DuckDBPyConnection:
    """Open a database without access to files or variables; it spills into an empty folder."""
    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": folder,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        },
    )
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


def keywords(*, reserved: bool = False) -> list[str]:
    """Return the keywords of SQL, or with ``reserved`` those that cannot be a plain name."""
    query = "SELECT keyword_name FROM duckdb_keywords()"
    if reserved:
        query += " WHERE keyword_category IN ('reserved', 'type_function')"
    with duckdb.connect() as database:
        rows = database.execute(query).fetchall()
    return [str(word) for (word,) in rows]


def _execute(
    scans: Sequence[_Scan], query: str, database: duckdb.DuckDBPyConnection
) -> pa.RecordBatchReader:
    for scan in scans:
        database.register(scan.name, scan)
    relation = database.sql(query)
    for name, kind in zip(relation.columns, relation.types, strict=True):
        if NOT_IN_ARROW.search(str(kind)):
            raise UsageError(
                f"Arrow has no type for the column {name!r} of the query, {kind}: cast it, for "
                "example to VARCHAR"
            )
    reader: pa.RecordBatchReader = relation.to_arrow_reader(BATCH_ROWS)
    return reader


def _hint_at_quotes(complaint: str) -> str:
    """Return a remedy if a keyword of SQL is where DuckDB stopped, or before it."""
    near = _NEAR.search(complaint)
    if near is None:
        return ""
    before = re.search(rf"LINE \d+: (?:.*?\b)??(\w+)\W+{re.escape(near[1])}\b", complaint)
    words = [near[1], before[1]] if before else [near[1]]
    if not {word.lower() for word in words} & {*keywords(reserved=True)}:
        return ""
    return '; write a name that is a word of SQL, such as at, in double quotes: "at"'


def _similar_names(complaint: str) -> str:
    """Return the names that DuckDB proposes for an unknown one, as the end of a sentence."""
    columns, others = _COLUMNS_LIKE.search(complaint), _OTHERS_LIKE.search(complaint)
    if columns is not None:
        return f"; columns of the query are {columns[1]}"
    return f"; did you mean {others[1]}?" if others is not None else ""


def _refusal(error: Exception) -> TidelogError:
    """Return our error for one of DuckDB."""
    text = told_by(error)
    if isinstance(error, duckdb.PermissionException) or "disabled by configuration" in text:
        return UsageError("SQL reads only collections, and opens no file: ingest the file first")
    if isinstance(error, duckdb.OutOfMemoryException):
        return UsageError(
            f"the query needs more memory than {MEMORY_LIMIT}: select fewer rows or columns, or "
            "run it on Spark",
        )
    if "time travel" in text or _TIME_TRAVEL.search(str(error)):
        return UsageError(
            "a query reads all collections as of one time: pass the time as as_of=, and remove it "
            "from the query"
        )
    if isinstance(error, duckdb.ParserException):
        return UsageError(f"the query is invalid: {text}{_hint_at_quotes(str(error))}")
    if isinstance(error, duckdb.BinderException | duckdb.CatalogException):
        return UsageError(f"the query is invalid: {text.rstrip('!')}{_similar_names(str(error))}")
    return UsageError(f"the query fails: {text}")
