"""Arrow tables as objects of other libraries (pandas, Polars and DuckDB), and as bytes.

No library is imported before it is needed, and pandas and Polars need not be installed.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from tidelog.core.arguments import check_kind
from tidelog.errors import UsageError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


def pandas_frame(table: pa.Table) -> Any:
    """Return a pandas DataFrame.

    Raises:
        UsageError: pandas is not installed.
    """
    _library("pandas")
    return table.to_pandas()


def polars_frame(table: pa.Table) -> Any:
    """Return a Polars DataFrame.

    Raises:
        UsageError: Polars is not installed.
    """
    return _library("polars").from_arrow(table)


def duckdb_relation(
    table: pa.Table, connection: duckdb.DuckDBPyConnection | None
) -> duckdb.DuckDBPyRelation:
    """Return a DuckDB relation that reads the table, by default on DuckDB's default connection.

    The relation keeps the table. It can be used for as long as its connection is open.

    Raises:
        UsageError: ``connection`` is not a connection of DuckDB.
    """
    import duckdb

    if connection is None:
        # DuckDB 1.4 closes a connection that only its relations refer to, and no version joins
        # relations of two connections.
        return duckdb.from_arrow(table)
    check_kind(
        connection, duckdb.DuckDBPyConnection, "connection must be one of duckdb.connect(), or None"
    )
    return connection.from_arrow(table)


def _library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} is not installed: pip install {name}") from error


def stream_bytes(
    table: pa.Table, compression: Literal["lz4", "zstd"] | None = None, *, rows: int | None = None
) -> bytes:
    """Return a table as an Arrow stream, in batches of at most ``rows`` rows."""
    import pyarrow as pa

    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()
