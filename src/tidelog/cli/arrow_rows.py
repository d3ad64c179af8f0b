"""Writers of rows as Arrow and Parquet; see `tidelog.cli.writers.PreparedRows`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.persist.format.parquet import encoding_of


class Out(Protocol):
    """A sink of bytes; Arrow needs the other members of a file object."""

    closed: bool

    def write(self, data: bytes | memoryview, /) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class ArrowRows:
    """A writer of rows as an Arrow file, or as an Arrow stream."""

    def __init__(self, schema: pa.Schema, out: Out, *, is_file: bool) -> None:
        self._schema = schema
        sink = pa.PythonFile(cast("Any", out), mode="w")
        made = pa.ipc.new_file(sink, schema) if is_file else pa.ipc.new_stream(sink, schema)
        self._write, self.close = made.write_table, made.close

    def prepare(self, table: pa.Table) -> Callable[[], None]:
        return partial(self._write, table.cast(self._schema))


class ParquetRows:
    """A writer of rows as Parquet; the first table decides the encodings.

    A text column that has a dictionary keeps it, which takes a third less time.
    """

    def __init__(self, schema: pa.Schema, out: Out) -> None:
        self._schema = schema
        self._sink = pa.PythonFile(cast("Any", out), mode="w")
        self._writer: pq.ParquetWriter | None = None
        self._written = schema

    def prepare(self, table: pa.Table) -> Callable[[], None]:
        return partial(self._write, table)

    def close(self) -> None:
        self._opened(self._schema.empty_table()).close()

    def _write(self, table: pa.Table) -> None:
        writer = self._opened(table)
        if not table.schema.equals(self._written):
            # Cast through the plain types: this table may have dictionaries in other columns than
            # the first one.
            table = table.cast(self._schema).cast(self._written)
        writer.write_table(table)

    def _opened(self, table: pa.Table) -> pq.ParquetWriter:
        if self._writer is None:
            given = zip(self._schema, table.schema.types, strict=True)
            fields = [f.with_type(t) if pa.types.is_dictionary(t) else f for f, t in given]
            self._written = pa.schema(fields)
            self._writer = pq.ParquetWriter(
                self._sink,
                self._written,
                compression="snappy",
                store_schema=False,
                **encoding_of(table),
            )
            # The stored Arrow schema has plain types, so that readers see no dictionaries.
            told = base64.b64encode(self._schema.serialize().to_pybytes())
            self._writer.add_key_value_metadata({"ARROW:schema": told.decode()})
        return self._writer
