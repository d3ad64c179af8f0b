"""``tidelog sql``: a query over collections, or a prompt for queries."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from tidelog.cli.command import AsJson, Timeout, Wait, on_location, timeout_us_of
from tidelog.cli.engine import LateSession, check_installed
from tidelog.cli.output import OutputClosed, first_rows, say
from tidelog.cli.writers import Destination, Format, Limit, Output, is_terminal, write_all
from tidelog.errors import TidelogError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from tidelog.collection.sql import SqlAnswer
    from tidelog.location import Location

PROMPT: Final = "tidelog> "
CONTINUED: Final = "    ...> "
HELP: Final = (
    "End a query with ; and press Enter. SHOW TABLES lists the collections, DESCRIBE NAME shows "
    "the columns of one. The Tab key completes names. Leave with .quit or Ctrl-D."
)
HISTORY_LINES: Final = 1_000


def sql(
    context: typer.Context,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY]",
            help="A query in the dialect of the engine; - reads it from standard input.",
        ),
    ] = None,
    *,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The time at which all collections are read, written as in read --as-of. The "
            "default is the newest time at which all of them are complete.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The engine: duckdb, or spark for answers over much data (it takes seconds to "
            "start).",
        ),
    ] = "duckdb",
    wait: Wait = False,
    timeout: Timeout = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Query collections with SQL, all as of one time.

    The tables of a query are the collections of the location, and NAME_errors for the bad rows of
    a source. A query reads only the columns that it needs, and skips parts and row groups that its
    conditions exclude. SQL cannot write, and cannot open files.

    Without a query, a terminal shows a prompt, with history and completion.
    """
    to = Destination(format, output, as_json=as_json, columns=None, where=None, limit=limit)
    run = partial(_run, as_of=as_of, wait=wait, timeout_us=timeout_us_of(timeout), to=to)
    with _session(engine) as spark:
        _answer_all(context, query, partial(run, spark=spark), output)


@contextmanager
def _session(engine: str) -> Iterator[LateSession | None]:
    """Yield the Spark session of the command, which its first query starts; None for DuckDB."""
    if engine not in ("duckdb", "spark"):
        raise UsageError(f"--engine must be duckdb or spark, not {engine!r}")
    if engine == "duckdb":
        yield None
        return
    check_installed(instead="--engine duckdb")
    spark = LateSession()
    try:
        yield spark
    finally:
        asyncio.run(spark.close())


def _answer_all(
    context: typer.Context, query: str | None, run: Callable[..., object], output: str | None
) -> None:
    if query is None and sys.stdin.isatty() and is_terminal():
        if output is not None:
            raise UsageError("-o needs a query: tidelog sql 'SELECT ...' -o FILE")
        _converse(context, run)
        return
    text = sys.stdin.read() if query in (None, "-") else query
    on_location(context, partial(run, query=text or ""))  # type: ignore[arg-type]


async def _run(
    location: Location,
    *,
    query: str,
    as_of: str | None,
    wait: bool,
    timeout_us: int | None,
    to: Destination,
    spark: LateSession | None,
) -> None:
    from tidelog.collection.formats.times import format_time, parse_time
    from tidelog.collection.sql import engine_of

    if as_of is not None:
        parse_time(as_of, what="--as-of", now_us=location.clock.now_us())
    if spark is not None:
        await location.clock.offload(spark.start)
    answer = engine_of("duckdb" if spark is None else "spark", rows_max=to.limit)
    running = answer(location.collections, query, as_of, wait=wait, timeout_us=timeout_us)
    async with running as found:
        _check_types(found)
        told = "" if found.as_of is None else f"as of {format_time(found.as_of)}"
        rows = first_rows(_tables(found), to.limit)
        clock = location.clock
        await write_all(rows, found.schema, to, clock=clock, unit="row", told=told)
        for name, newest in sorted(found.later.items()):
            say(
                f"{name} is complete up to {format_time(newest)}; the query reads all collections "
                f"{told}, the newest time at which all of them are complete"
            )


def _check_types(found: SqlAnswer) -> None:
    """Refuse an answer with columns that no output format holds.

    Raises:
        UsageError: a column has an interval or a map.
    """
    for field in found.schema:
        if any(kind in str(field.type) for kind in ("interval", "map<")):
            raise UsageError(
                f"no format has a form for the column {field.name!r} of the query, {field.type}: "
                "cast it, for example to VARCHAR"
            )


async def _tables(found: SqlAnswer) -> AsyncGenerator[pa.Table, None]:
    import pyarrow as pa

    async with aclosing(found.batches) as batches:
        async for batch in batches:
            yield pa.Table.from_batches([batch])


def _converse(context: typer.Context, run: Callable[..., object]) -> None:
    """Answer the queries of a terminal until its user leaves."""
    words = on_location(context, _words)
    say(HELP)
    with _Lines(words) as lines:
        while (query := lines.next_query()) is not None:
            try:
                on_location(context, partial(run, query=query))  # type: ignore[arg-type]
            except OutputClosed:
                return
            except TidelogError as error:
                say(f"tidelog: {error}")
            except KeyboardInterrupt:
                say("interrupted")
            except Exception as error:  # noqa: BLE001  # The prompt must survive a faulty query.
                say(f"tidelog: unexpected error; please report it: {error!r}")


async def _words(location: Location) -> list[str]:
    """Return the words that complete: SQL's, and the names of collections and columns."""
    from tidelog.collection.sql import keywords

    found = keywords()
    catalog = await location.controller.catalog()
    for name in catalog.collections:
        found += [name, *catalog.active(name).data_schema.names]
    return sorted(set(found))


class _Lines:
    """The lines that a user types, with editing, history and completion by readline."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        self._history = Path(state, "tidelog", "sql_history")

    def __enter__(self) -> Self:
        with suppress(ImportError):  # Some builds of Python have no readline.
            import readline

            self._readline = readline
            readline.set_completer(self._completion)
            readline.set_completer_delims(" \t\n,()=<>;")
            readline.parse_and_bind("tab: complete")
            readline.set_history_length(HISTORY_LINES)
            with suppress(OSError):  # There is no history yet, or it is not readable.
                readline.read_history_file(self._history)
        return self

    def __exit__(self, *_: object) -> None:
        readline = getattr(self, "_readline", None)
        if readline is None:
            return
        with suppress(OSError):  # Without a writable folder, there is no history.
            self._history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(self._history)

    def next_query(self) -> str | None:
        """Return the next query, without its semicolon; None at the end."""
        lines: list[str] = []
        while True:
            try:
                line = input(CONTINUED if lines else PROMPT)
            except EOFError:
                say("")
                return None
            except KeyboardInterrupt:
                say("")
                lines = []
                continue
            word = line.strip().lower()
            if not lines and word.rstrip(";") in (".quit", ".exit", "quit", "exit"):
                return None
            if not lines and word in (".help", "help", "?"):
                say(HELP)
            elif word or lines:
                lines.append(line)
            if lines and line.rstrip().endswith(";"):
                return "\n".join(lines).rstrip().rstrip(";")

    def _completion(self, text: str, state: int) -> str | None:
        matches = [word for word in self._words if word.lower().startswith(text.lower())]
        return matches[state] if state < len(matches) else None
