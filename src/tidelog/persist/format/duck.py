"""DuckDB connections for consolidation: in memory, in UTC, spilling to disk past a limit.

DuckDB is imported on first use: many reads do not need it, and the import takes 50 ms.
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

# One database per process: creating one takes 10 ms, and a cursor of it 2 ms. Keyed by process id,
# because Spark forks its workers and a database must not be used on both sides of a fork.
_databases: dict[int, duckdb.DuckDBPyConnection] = {}


@contextmanager
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a new connection to this process's database."""
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
        atexit.register(database.close)  # Closing deletes the spill files.
    cursor = database.cursor()
    try:
        cursor.execute("SET TimeZone = 'UTC'")
        yield cursor
    except duckdb.FatalException:
        # A fatal error makes the database unusable, so the next caller creates another.
        if _databases.get(os.getpid()) is database:
            del _databases[os.getpid()]
        raise
    finally:
        cursor.close()


@contextmanager
def bounded_duck(memory_bytes: int, spill: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a new database that spills to the folder ``spill`` past ``memory_bytes``."""
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
    """Yield a new database whose results keep the order of their input."""
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
    """Raise a clear error for a sum of diffs that does not fit into 64 bits.

    Raises:
        CorruptionError: a sum does not fit.
    """
    import duckdb

    try:
        yield
    except duckdb.ConversionException as error:
        raise CorruptionError(
            "the sum of a row's diffs exceeds 64 bits: remove some of its copies"
        ) from error


def text_literal(text: str) -> str:
    """Return text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a column's name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
