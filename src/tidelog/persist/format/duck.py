"""DuckDB connections for consolidation: in memory, in UTC, spilling to disk past a bound.

DuckDB is loaded when it is used: many reads do without, and it takes 50 ms.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.errors import CorruptionError

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "2GiB"

# One database a process, since making one takes 10 ms and a cursor of it 2. Keyed by process id,
# since Spark forks its workers and a database must not be used on both sides of a fork.
_databases: dict[int, duckdb.DuckDBPyConnection] = {}


@contextmanager
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection of one's own to this process's database."""
    import duckdb

    database = _databases.get(os.getpid())
    if database is None:
        spill = os.path.join(tempfile.gettempdir(), f"tidelog-spill-{os.getpid()}")
        database = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": MEMORY_LIMIT,
                "temp_directory": spill,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
            },
        )
        _databases[os.getpid()] = database
        atexit.register(database.close)  # Which removes what it has spilled.
    cursor = database.cursor()
    try:
        cursor.execute("SET TimeZone = 'UTC'")
        yield cursor
    except duckdb.FatalException:
        # It is of no more use to anybody in this process: whoever comes next gets another.
        if _databases.get(os.getpid()) is database:
            del _databases[os.getpid()]
        raise
    finally:
        cursor.close()


@contextmanager
def bounded_duck(memory_bytes: int, spill: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database of one's own that keeps in ``spill`` what does not fit into memory."""
    import duckdb

    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{memory_bytes}B",
            "temp_directory": spill,
            "threads": 1,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
        },
    )
    try:
        database.execute("SET TimeZone = 'UTC'")
        yield database
    finally:
        database.close()


@contextmanager
def duck_in_order() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database of one's own, whose results come in the order of what they are made of."""
    import duckdb

    database = duckdb.connect(
        ":memory:",
        config={
            "memory_limit": MEMORY_LIMIT,
            "autoinstall_known_extensions": False,
            "enable_external_access": False,
        },
    )
    try:
        database.execute("SET TimeZone = 'UTC'")
        yield database
    finally:
        database.close()


@contextmanager
def sums_told() -> Iterator[None]:
    """Tell of a sum of diffs that 64 bits do not hold.

    Raises:
        CorruptionError: there is one.
    """
    import duckdb

    try:
        yield
    except duckdb.ConversionException as error:
        raise CorruptionError(
            "a row is there more often than 64 bits can say: its diffs cannot be added up"
        ) from error


def text_literal(text: str) -> str:
    """Return text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a column's name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
